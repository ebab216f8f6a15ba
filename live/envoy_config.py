"""Envoy's configuration for an endpoint, from templates/envoy.yaml.j2.

Path("envoy.yaml").write_text(envoy_config(endpoint))
"""

from typing import Any

from outrider.live.endpoint_file import Endpoint, EndpointReplica
from outrider.live.templates import render
from outrider.serving.admin.address import Address

POOLS = {"canary": "canary_host", "stable": "stable_host"}
"""Cluster of the replicas with a role."""

WHOLE = 10_000
"""Sum of the two weights: shares are in hundredths of a percent."""

RUNTIME_KEY = "speculator"


def envoy_config(endpoint: Endpoint) -> str:
    """The configuration as YAML."""
    pools = [
        {
            "role": role,
            "name": name,
            "type": "STRICT_DNS" if any(map(_needs_dns, replicas)) else "STATIC",
            "replicas": [
                {"address": _address(each.data), "hostname": each.name} for each in replicas
            ],
        }
        for role, name in POOLS.items()
        if (replicas := [each for each in endpoint.replicas if each.role == role])
    ]
    return render(
        "envoy.yaml.j2",
        admin=_address(endpoint.envoy_admin),
        listen=_address(endpoint.router.listen),
        access_log=str(endpoint.access_log),
        sticky=endpoint.router.sticky_header,
        pools=pools,
        runtime_key=RUNTIME_KEY,
        whole=WHOLE,
    )


def _needs_dns(replica: EndpointReplica) -> bool:
    host = Address.parse(replica.data).host
    return host is not None and not host.replace(".", "").isdigit() and ":" not in host


def _address(text: str) -> dict[str, Any]:
    address = Address.parse(text)
    if address.path is not None:
        return {"pipe": {"path": address.path, "mode": 0o600}}
    return {"socket_address": {"address": address.host, "port_value": address.port}}
