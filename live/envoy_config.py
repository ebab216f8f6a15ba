"""Envoy's configuration: which paths pass, who serves them, what happens when a replica dies.

    Path("envoy.yaml").write_text(yaml.safe_dump(envoy_config(endpoint)))

Requests are shared out between the clusters `canary` and `stable` by weights that Envoy's
administration changes while it runs. Both are aggregates of the same two pools of replicas, each
with its own pool first, so that requests whose pool is down are answered by the other one.
"""

from typing import Any

from outrider.live.endpoint_file import Endpoint, EndpointReplica
from outrider.serving.admin.address import Address

POOLS = {"canary": "canary_host", "stable": "stable_host"}
"""Cluster of the replicas with a role. The canary is first: a session's hash selects the first
cluster whose summed weights exceed it, so a larger share only adds sessions to the canary."""

WHOLE = 10_000
"""Sum of the two weights: shares are in hundredths of a percent."""

RUNTIME_KEY = "speculator"

DENIED = ("/v1/admin", "/v1/load_lora_adapter", "/v1/unload_lora_adapter")
"""Administration below /v1: customers have the key that guards it."""

PUBLIC = "/v1/[A-Za-z0-9._~:@/,+=-]*"
"""Paths that pass (RE2). Without percent signs, backslashes and semicolons, so that no server reads
a path differently from the router."""

RETRY_ON = "connect-failure,refused-stream,reset-before-request"
"""What is repeated, once and in the other pool: a request that no replica has read. One that was
read may be what killed the replica, and would kill the next one too."""

_RETRY_BUDGET = {"budget_percent": {"value": 20.0}, "min_retry_concurrency": 10}
"""Repeated requests at a time: a share of those in progress. A replica is ejected after 3."""

_IDLE_S = 3
"""Idle connections end before uvicorn's 5 s, so that no request meets a connection being closed."""

_SILENT_S = 3600
"""A response without a byte for this long is given up. Reasoning may be long and not streamed."""

_CONNECTIONS = 20_000
"""Clients' connections at a time; further ones are refused."""

_BODY_BYTES = 32 << 20
"""A request can be repeated only while its body is held: 128k tokens of text are below 1 MiB."""


def envoy_config(endpoint: Endpoint) -> dict[str, Any]:
    """The configuration as a tree for YAML or JSON."""
    pools = {
        cluster: replicas
        for role, cluster in POOLS.items()
        if (replicas := [each for each in endpoint.replicas if each.role == role])
    }
    clusters = [_pool(name, replicas, endpoint) for name, replicas in pools.items()]
    clusters += [_aggregate(role, pools) for role, cluster in POOLS.items() if cluster in pools]
    return {
        "admin": {
            "address": _address(endpoint.router.admin),
            "ignore_global_conn_limit": True,
        },
        "overload_manager": {
            "resource_monitors": [
                _typed(
                    "envoy.resource_monitors.global_downstream_max_connections",
                    "resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                    max_active_downstream_connections=_CONNECTIONS,
                )
            ]
        },
        "layered_runtime": {"layers": [{"name": "admin", "admin_layer": {}}]},
        "static_resources": {
            "listeners": [
                {
                    "name": "public",
                    "address": _address(endpoint.router.listen),
                    "per_connection_buffer_limit_bytes": _BODY_BYTES,
                    "filter_chains": [{"filters": [_connection_manager(endpoint)]}],
                }
            ],
            "clusters": clusters,
        },
    }


def _connection_manager(endpoint: Endpoint) -> dict[str, Any]:
    kind = "filters.network.http_connection_manager.v3.HttpConnectionManager"
    return _typed(
        "envoy.filters.network.http_connection_manager",
        kind,
        stat_prefix="public",
        stream_idle_timeout=f"{_SILENT_S}s",
        # Every client is external: its x-envoy-* headers are dropped and request ids are new.
        use_remote_address=True,
        internal_address_config={"unix_sockets": False},
        normalize_path=True,
        merge_slashes=True,
        path_with_escaped_slashes_action="REJECT_REQUEST",
        access_log=[_access_log(endpoint)],
        http_filters=[
            _typed("envoy.filters.http.router", "filters.http.router.v3.Router"),
        ],
        route_config={
            "virtual_hosts": [{"name": "all", "domains": ["*"], "routes": _routes(endpoint)}]
        },
    )


def _routes(endpoint: Endpoint) -> list[dict[str, Any]]:
    body = '{"error": {"message": "no such path", "type": "NotFoundError", "code": 404}}'
    not_found = {"status": 404, "body": {"inline_string": body}}
    json_type = {
        "header": {"key": "content-type", "value": "application/json"},
        "append_action": "OVERWRITE_IF_EXISTS_OR_ADD",
    }
    denied = {"direct_response": not_found, "response_headers_to_add": [json_type]}
    routes: list[dict[str, Any]] = [
        {"match": {"prefix": prefix, "case_sensitive": False}} | denied for prefix in DENIED
    ]
    routes.append({"match": {"safe_regex": {"regex": PUBLIC}}, "route": _shared_out(endpoint)})
    # Not /metrics: all customers' counts. Prometheus reads them from the servers.
    routes.append({"match": {"path": "/health"}, "route": _route() | {"cluster": "stable"}})
    routes.append({"match": {"prefix": "/"}} | denied)
    return routes


def _shared_out(endpoint: Endpoint) -> dict[str, Any]:
    sticky = endpoint.router.sticky_header
    policy = [{"header": {"header_name": sticky}}] if sticky else []
    if not endpoint.canary:
        return _route() | {"cluster": "stable", "hash_policy": policy}
    return _route() | {
        "hash_policy": policy,
        "weighted_clusters": {
            "runtime_key_prefix": RUNTIME_KEY,
            "use_hash_policy": bool(sticky),
            "clusters": [{"name": "canary", "weight": 0}, {"name": "stable", "weight": WHOLE}],
        },
    }


def _route() -> dict[str, Any]:
    """Without a time limit; repeated where no replica has read it."""
    return {
        "timeout": "0s",  # the default cuts responses after 15 s
        "retry_policy": {
            "retry_on": RETRY_ON,
            "num_retries": 1,
            "retry_back_off": {"base_interval": "0.01s", "max_interval": "0.1s"},
            "retry_host_predicate": [
                _typed(
                    "envoy.retry_host_predicates.previous_hosts",
                    "retry.host.previous_hosts.v3.PreviousHostsPredicate",
                )
            ],
            "host_selection_retry_max_attempts": 3,
            "retry_priority": _typed(
                "envoy.retry_priorities.previous_priorities",
                "retry.priority.previous_priorities.v3.PreviousPrioritiesConfig",
                update_frequency=1,
            ),
        },
    }


def _access_log(endpoint: Endpoint) -> dict[str, Any]:
    sticky = endpoint.router.sticky_header
    line = {
        "started_at": "%START_TIME(%s.%6f)%",
        "cluster": "%UPSTREAM_CLUSTER_RAW%",
        "host": "%UPSTREAM_HOST%",
        "status": "%RESPONSE_CODE%",
        "flags": "%RESPONSE_FLAGS%",
        "ttfb_ms": "%RESPONSE_DURATION%",
        "duration_ms": "%DURATION%",
        "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
        "method": "%REQ(:METHOD)%",
        "path": "%PATH(NQ:PATH:64)%",
        "request_id": "%REQ(x-request-id)%",
        "session": f"%REQ({sticky}):128%" if sticky else None,
    }
    return _typed(
        "envoy.access_loggers.file",
        "access_loggers.file.v3.FileAccessLog",
        path=str(endpoint.router.access_log),
        log_format={"json_format": {key: value for key, value in line.items() if value}},
    )


def _pool(name: str, replicas: list[EndpointReplica], endpoint: Endpoint) -> dict[str, Any]:
    """The replicas of a role, with health checks and ejection of those that do not answer."""
    balance: dict[str, Any] = {"lb_policy": "LEAST_REQUEST"}
    common: dict[str, Any] = {"healthy_panic_threshold": {"value": 0}}
    if endpoint.router.sticky_header and len(replicas) > 1:
        # A session stays at the replica that has its prefix cached, unless it has 1.5 times the
        # mean number of requests.
        balance = {"lb_policy": "MAGLEV"}
        common["consistent_hashing_lb_config"] = {"hash_balance_factor": 150}
    endpoints = [
        {"endpoint": {"address": _address(replica.data), "hostname": replica.name}}
        for replica in replicas
    ]
    options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {
        "name": name,
        "type": "STRICT_DNS" if any(_needs_dns(each) for each in replicas) else "STATIC",
        "connect_timeout": "2s",
        **balance,
        "common_lb_config": common,
        "circuit_breakers": _limits(),
        "typed_extension_protocol_options": {
            options: {
                "@type": f"type.googleapis.com/{options}",
                "common_http_protocol_options": {"idle_timeout": f"{_IDLE_S}s"},
                "explicit_http_config": {"http_protocol_options": {}},
            }
        },
        "health_checks": [
            {
                "timeout": "5s",
                "interval": "1s",
                "no_traffic_interval": "1s",
                "unhealthy_threshold": 3,
                "healthy_threshold": 1,
                "http_health_check": {"path": "/health"},
            }
        ],
        # Only failures to answer (502 to 504, no connection) count: a request that the server
        # refuses with 500 must not take its replica away from the others.
        "outlier_detection": {
            "consecutive_gateway_failure": 3,
            "enforcing_consecutive_gateway_failure": 100,
            "enforcing_consecutive_5xx": 0,
            "enforcing_success_rate": 0,
            "interval": "1s",
            "base_ejection_time": "5s",
            "max_ejection_percent": 100,
        },
        "load_assignment": {
            "cluster_name": name,
            # One healthy replica is enough for the pool to keep all its requests. The default moves
            # 30 % of them to the other pool when one of two is down.
            "policy": {"overprovisioning_factor": 100 * 100},
            "endpoints": [{"lb_endpoints": endpoints}],
        },
    }


def _aggregate(role: str, pools: dict[str, list[EndpointReplica]]) -> dict[str, Any]:
    """The pool of a role, then the other one."""
    first = POOLS[role]
    return {
        "name": role,
        "connect_timeout": "2s",
        "lb_policy": "CLUSTER_PROVIDED",
        "circuit_breakers": _limits(),
        "cluster_type": _typed(
            "envoy.clusters.aggregate",
            "clusters.aggregate.v3.ClusterConfig",
            clusters=[first, *(pool for pool in pools if pool != first)],
        ),
    }


def _limits() -> dict[str, Any]:
    """Retries have a budget; the other limits are never reached."""
    names = ("max_connections", "max_pending_requests", "max_requests")
    return {"thresholds": [dict.fromkeys(names, 100_000) | {"retry_budget": _RETRY_BUDGET}]}


def _needs_dns(replica: EndpointReplica) -> bool:
    host = Address.parse(replica.data).host
    return host is not None and not host.replace(".", "").isdigit() and ":" not in host


def _address(text: str) -> dict[str, Any]:
    address = Address.parse(text)
    if address.path is not None:
        return {"pipe": {"path": address.path, "mode": 0o600}}
    return {"socket_address": {"address": address.host, "port_value": address.port}}


def _typed(name: str, kind: str, **fields: Any) -> dict[str, Any]:
    url = f"type.googleapis.com/envoy.extensions.{kind}"
    return {"name": name, "typed_config": {"@type": url, **fields}}
