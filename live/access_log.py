"""The router's log of finished requests, one line of JSON each.

    finished, offset = read_requests(endpoint, 0)
    later, offset = read_requests(endpoint, offset)

The log has neither bodies nor query strings. A session's name is read as its hash.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Literal, cast

from outrider.live.endpoint_file import Endpoint

_MOST_BYTES = 16 << 20
"""Read in one call, so that a controller that was away for a day does not read it all at once."""


@dataclass(frozen=True)
class RoutedRequest:
    """A request that the router answered or passed on, and that ended."""

    started_at: float
    """Seconds since 1970 (UTC)."""
    cluster: Literal["stable", "canary"] | None
    """Role of the replica that served it; None: the router answered by itself."""
    host: str | None
    """Name of that replica."""
    status: int
    """HTTP status; 0: the client left before there was one."""
    flags: str
    """Envoy's response flags; empty for a normal end. Such as UC (the replica closed a response
    that had begun), DC (the client left), UH (no healthy replica), NR (no such path)."""
    duration_ms: float
    """Time to the last byte, in milliseconds."""
    attempts: int
    """1 without retries; 0 where no replica was tried."""
    path: str
    """Without its query."""
    request_id: str | None = None
    """Its x-request-id, which vLLM puts into its own id (`cmpl-` or `chatcmpl-` and this)."""
    session: str | None = None
    """Hash of the sticky header's value."""
    routed_to: Literal["stable", "canary"] | None = None
    """Role that its share selected; another one than `cluster` served it if that was down."""

    @property
    def failed(self) -> bool:
        """Whether the endpoint failed it: an error of a replica, or a response that broke off."""
        broken = set(self.flags.split(",")) & {"UC", "UF", "UH", "UR", "LR", "UT", "SI", "UPE"}
        return self.status >= 500 or bool(broken)


def read_requests(endpoint: Endpoint, offset: int) -> tuple[list[RoutedRequest], int]:
    """Requests in complete lines from byte `offset`, and the offset of the next line."""
    try:
        with endpoint.access_log.open("rb") as log:
            if log.seek(0, 2) < offset:
                offset = 0
            log.seek(offset)
            data = log.read(_MOST_BYTES)
    except FileNotFoundError:
        return [], 0
    names = {
        replica.data.removeprefix("unix:").removeprefix("http://"): replica
        for replica in endpoint.replicas
    }
    complete = data[: data.rfind(b"\n") + 1]
    lines = complete.splitlines()
    found = [request for line in lines if (request := _request(line, names)) is not None]
    return found, offset + len(complete)


def _request(line: bytes, replicas: dict[str, Any]) -> RoutedRequest | None:
    """None for a line that an Envoy which was killed left torn."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or "started_at" not in row:
        return None
    replica = replicas.get(row.get("host") or "")
    session, routed = row.get("session"), row.get("cluster")
    return RoutedRequest(
        started_at=float(row["started_at"]),
        cluster=replica.role if replica else None,
        host=replica.name if replica else row.get("host"),
        status=int(row["status"] or 0),
        flags="" if row["flags"] in (None, "-") else row["flags"],
        duration_ms=float(row["duration_ms"]),
        attempts=int(row["attempts"] or 0),
        path=row["path"] or "",
        request_id=row.get("request_id"),
        session=hashlib.sha256(session.encode()).hexdigest()[:16] if session else None,
        routed_to=cast(Any, routed) if routed in ("stable", "canary") else None,
    )
