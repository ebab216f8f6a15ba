"""A replica's admin route: which speculator it drafts with, swap, and finished requests.

    replica = Replica("unix:/run/outrider/a.admin.sock", "unix:/run/outrider/a.sock", token)
    replica.status().version
    replica.swap(SwapOrder(directory="/releases/4f1d0c2a9b77", version="v2", digest=digest))
    finished, after = replica.requests(after=0)

The other end is serving/vllm_hooks/admin_route.py. All JSON of the route is made of the classes
here.
"""

import dataclasses
import http.client
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from outrider.common.errors import OutriderError
from outrider.serving.admin.address import Address

ROUTE = "/v1/admin/speculator"
REQUESTS = ROUTE + "/requests"


class SwapRefused(OutriderError):
    """The replica did not swap the speculator; the old one still serves."""


class SwapFailed(OutriderError):
    """A swap failed; `status` names the speculator in use, which may be neither of the two."""


class ReplicaUnreachable(OutriderError):
    """The replica gave no answer. A swap that was in progress may or may not have happened."""


class Watch(BaseModel):
    """Acceptance that a swap must keep; otherwise it is taken back."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)

    requests: Annotated[int, Field(ge=2)]
    """Finished requests, of those that began after the swap, after which the watch ends."""
    min_tokens_per_step: Annotated[float, Field(ge=1)]
    """Least tokens per engine step, 1 + accepted / drafts, that the evidence predicts."""
    level: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """Largest probability of taking back a speculator that keeps it, at any stopping time."""


class SwapOrder(BaseModel):
    """The body of a POST: the speculator to load."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    directory: Annotated[str, Field(min_length=1, max_length=4096)]
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:+-]{1,128}$")]
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """`bundle_digest` of the bundle in `directory`."""
    watch: Watch | None = None
    expected: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] | None = None
    """Digest that the speculator in use must have; empty for that of the start, None for any."""


@dataclasses.dataclass(frozen=True)
class ReplicaStatus:
    """Which speculator a replica drafts with."""

    version: str | None
    """The version given to the last swap; None before the first one."""
    digest: str
    """`bundle_digest` of the release; empty before the first swap."""
    k: int
    """Drafts per step that the engine was started for."""
    kind: str
    """Drafter kind."""
    directory: str
    """Where the speculator was loaded from."""
    watching: bool = False
    """True while the acceptance after a swap is being compared with its evidence."""
    reverted: str | None = None
    """The version of the last swap if it was taken back by the watch; None otherwise."""
    reverted_because: str | None = None
    """The numbers that took it back."""
    broken: str | None = None
    """Why the drafts are wrong until the replica is started again; None if they are not."""


@dataclasses.dataclass(frozen=True)
class SwapResult:
    """A speculator that was swapped."""

    version: str
    read_s: float
    """Seconds to read and check the files; the engine may have been answering meanwhile."""
    stall_s: float
    """Seconds of the swap, with the pause and any clearing of caches: the longest time in which no
    request got a token."""


@dataclasses.dataclass(frozen=True)
class LiveRequest:
    """A finished request, without its text."""

    index: int
    """Index in the order of completion, from 0 at the start of the server."""
    request_id: str
    """The id of the response, or the client's `X-Request-Id` with the API's prefix."""
    version: str | None
    """The release that drafted all of it; None before the first swap, or if a swap fell into it."""
    finished_at: float
    """Unix time in seconds."""
    completion_tokens: int
    drafts: int
    """Steps that verified drafts."""
    accepted: int
    """Accepted draft tokens."""
    ttft_s: float
    """Seconds from arrival to the first token; 0 if there was none."""
    decode_s: float
    """Seconds from the first token to the last."""
    e2e_s: float
    """Seconds from arrival to the end."""
    failed: bool
    """Ended by an error of the engine. A client that disconnects is not a failure."""
    aborted: bool = False
    """Ended before its last token: the client hung up, or the server aborted it."""
    mixed: bool = False
    """True if a swap fell into it."""


@dataclasses.dataclass(frozen=True)
class FinishedRequests:
    """The last requests of a server."""

    requests: list[LiveRequest]
    next: int
    """Index of the next one to end."""


class Replica:
    """One vLLM server with the admin route."""

    def __init__(self, admin: str, data: str, token: str) -> None:
        """Addresses (`unix:/path`, `http://127.0.0.1:PORT`) of the route and of its requests."""
        self.admin, self.data = Address.parse(admin), Address.parse(data)
        self._token = token

    def status(self) -> ReplicaStatus:
        """The speculator in use; `ReplicaUnreachable` if the server does not answer."""
        status, answer = self._call("GET", ROUTE)
        is_broken = isinstance(answer, dict) and answer.get("broken")
        if status != http.client.OK and not is_broken:
            raise OutriderError(f"{self.admin}{ROUTE}: {status} {_reason(answer)}")
        return ReplicaStatus(**answer)

    def swap(self, order: SwapOrder) -> SwapResult:
        """Swaps the speculator.

        `SwapRefused` has the server's reason and leaves the old speculator in place. After
        `SwapFailed` and `ReplicaUnreachable`, `status` has which one serves.
        """
        status, answer = self._call("POST", ROUTE, order.model_dump(), timeout_s=600)
        if status != http.client.OK:
            error = SwapRefused if status in (400, 404, 409, 422) else SwapFailed  # never begun
            where = f"{self.admin}: {order.directory}"
            raise error(f"{where} was not loaded ({status}): {_reason(answer)}")
        return SwapResult(**answer)

    def requests(self, after: int) -> tuple[list[LiveRequest], int]:
        """Requests that finished, from index `after` on, and the `after` of the next call.

        The server keeps the last ones only, so indices may be missing. A smaller next value than
        `after` means that the server was started again.
        """
        status, answer = self._call("GET", f"{REQUESTS}?after={after}")
        if status != http.client.OK:
            raise OutriderError(f"{self.admin}{REQUESTS}: {status} {_reason(answer)}")
        return [LiveRequest(**each) for each in answer["requests"]], int(answer["next"])

    def healthy(self) -> bool:
        """True if the engine is alive."""
        try:
            return self.data.call("GET", "/health", timeout_s=5)[0] == http.client.OK
        except (OSError, http.client.HTTPException):
            return False

    def _call(
        self, method: str, path: str, body: Any = None, timeout_s: float = 60
    ) -> tuple[int, Any]:
        try:
            return self.admin.call(method, path, body, self._token, timeout_s)
        except (OSError, http.client.HTTPException) as error:
            raise ReplicaUnreachable(
                f"{self.admin}: no answer ({error!r}); start the replica, or correct its address"
            ) from error


def _reason(answer: Any) -> str:
    if isinstance(answer, dict):
        return str(answer.get("error", answer))
    return str(answer)[:2000]
