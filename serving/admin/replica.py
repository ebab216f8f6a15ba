"""Client of a replica's admin route: speculator in use, swaps, finished requests.

    replica = Replica("unix:/run/outrider/a.admin.sock", token)
    replica.status().version
    replica.swap(SwapOrder(directory="/releases/4f1d0c2a9b77", version="v2", digest=digest))
    finished, after = replica.requests(after=0)

The server is serving/vllm_hooks/admin_route.py. The classes here define the route's JSON.
"""

import dataclasses
import http.client
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from outrider.common.errors import OutriderError
from outrider.serving.admin.address import Address

ROUTE = "/v1/admin/speculator"
REQUESTS = ROUTE + "/requests"


Text = Annotated[str, Field(max_length=2**16, pattern=r"^[^\x00]*$")]
"""Text of an answer. Without NUL and lone surrogates, which no path or journal can hold."""

Count = Annotated[int, Field(ge=0, lt=2**53)]
Amount = Annotated[float, Field(ge=-1e12, le=1e12)]
"""Seconds. Slightly negative where the clock was set back between two of its readings."""
Digest = Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


class SwapRefused(OutriderError):
    """The replica did not swap the speculator; the old one stays in use."""


class SwapFailed(OutriderError):
    """A swap failed; `status` names the possibly broken speculator in use."""


class ReplicaUnreachable(OutriderError):
    """The replica did not answer; a swap in progress may have completed."""


class Watch(BaseModel):
    """The acceptance below which a swap is reverted."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, frozen=True)

    requests: Annotated[int, Field(ge=2)]
    """The watch ends after this many finished requests that began after the swap."""
    min_tokens_per_step: Annotated[float, Field(ge=1)]
    """Minimum tokens per engine step (1 + accepted drafts / steps), from the bundle's evidence."""
    level: Annotated[float, Field(gt=0, lt=0.5)] = 0.05
    """Largest probability of wrongly reverting a swap, at any stopping time."""


class SwapOrder(BaseModel):
    """The body of a POST: the speculator to load."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    directory: Annotated[str, Field(min_length=1, max_length=4096)]
    version: Annotated[str, Field(pattern=r"^[A-Za-z0-9._:+-]{1,128}$")]
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    """`bundle_digest` of the bundle in `directory`."""
    watch: Watch | None = None
    expected: Digest | None = None
    """Required `ReplicaStatus.digest` of the speculator in use; None for any."""


@dataclasses.dataclass(frozen=True)
class ReplicaStatus:
    """The speculator that a replica drafts with."""

    version: Text | None
    """Version of the speculator in use; None before the first swap."""
    digest: Digest
    """`bundle_digest` of what is in use; empty for a directory that is no intact bundle."""
    k: Count
    """Drafts per step that the engine was started with."""
    kind: Text
    """Drafter kind."""
    directory: Text
    """Directory that the speculator was loaded from."""
    watching: bool = False
    """True while the watch compares the acceptance after a swap with the predicted minimum."""
    reverted: Text | None = None
    """Version of the last swap if the watch reverted it; None otherwise."""
    reverted_because: Text | None = None
    """Why the watch reverted it, with the measured numbers."""
    broken: Text | None = None
    """Why workers may draft with wrong weights, until a swap succeeds on all of them; else None."""


@dataclasses.dataclass(frozen=True)
class SwapResult:
    """Result of a successful swap."""

    read_s: Amount
    """Seconds to read and check the files; the engine can answer requests meanwhile."""
    stall_s: Amount
    """Seconds spent paused and swapping, an upper bound on the time without tokens."""
    differing: list[Text] = dataclasses.field(default_factory=list)
    """vLLM arguments of the release's bundle.json with other values in the server's command."""


@dataclasses.dataclass(frozen=True)
class LiveRequest:
    """A finished request, without its text."""

    index: Count
    """Index in the order of completion, from 0 at the start of the server."""
    request_id: str  # a client chooses it, so any text is valid
    """The id of the response, or the client's `X-Request-Id` with the API's prefix."""
    version: Text | None
    """The release that drafted for it; None before the first swap, or if `mixed`."""
    finished_at: Amount
    """Unix time in seconds."""
    completion_tokens: Count
    drafts: Count
    """Steps that verified drafts."""
    accepted: Count
    """Accepted draft tokens."""
    ttft_s: Amount
    """Seconds from arrival to the first token; 0 if there was none."""
    decode_s: Amount
    """Seconds from the first token to the last."""
    e2e_s: Amount
    """Seconds from arrival to the end."""
    failed: bool
    """True if an engine error ended the request; a client disconnect is not a failure."""
    aborted: bool = False
    """True if the client disconnected or the server aborted the request."""
    mixed: bool = False
    """True if a swap occurred during the request."""


@dataclasses.dataclass(frozen=True)
class FinishedRequests:
    """A server's most recently finished requests."""

    requests: list[LiveRequest]
    next: Count
    """Index of the next request to finish."""


Answer = TypeVar("Answer", ReplicaStatus, SwapResult, FinishedRequests)


class Replica:
    """One vLLM server with the admin route at address `admin`."""

    def __init__(self, admin: str, token: str) -> None:
        self.admin = Address.parse(admin)
        self._token = token

    def status(self) -> ReplicaStatus:
        """Returns the speculator in use; raises `ReplicaUnreachable` if there is no answer."""
        status, answer = self._call("GET", ROUTE)
        is_broken = isinstance(answer, dict) and answer.get("broken")
        if status != http.client.OK and not is_broken:
            raise OutriderError(f"{self.admin}{ROUTE}: {status} {_reason(answer)}")
        return self._read(ReplicaStatus, answer)

    def swap(self, order: SwapOrder) -> SwapResult:
        """Swaps the speculator.

        Raises `SwapRefused` with the server's reason if the old speculator stays in use. After
        `SwapFailed` or `ReplicaUnreachable`, `status` tells which speculator is in use.
        """
        status, answer = self._call("POST", ROUTE, order.model_dump(), timeout_s=600)
        if status != http.client.OK:
            # These codes mean that the old speculator stays in use.
            error = SwapRefused if status in (400, 404, 409, 422) else SwapFailed
            where = f"{self.admin}: {order.directory}"
            raise error(f"{where} was not loaded ({status}): {_reason(answer)}")
        return self._read(SwapResult, answer)

    def requests(self, after: int) -> tuple[list[LiveRequest], int]:
        """Returns finished requests from index `after` on, and the next `after`.

        The server keeps only the most recent requests. If the next `after` is smaller than `after`,
        the server was restarted.
        """
        status, answer = self._call("GET", f"{REQUESTS}?after={after}")
        if status != http.client.OK:
            raise OutriderError(f"{self.admin}{REQUESTS}: {status} {_reason(answer)}")
        finished = self._read(FinishedRequests, answer)
        return finished.requests, finished.next

    def _read(self, form: type[Answer], answer: Any) -> Answer:
        """Converts an answer; ignores fields that another Outrider has added."""
        try:
            return TypeAdapter(form).validate_python(answer)
        except ValidationError as error:
            wrong = error.errors(include_input=False)[0]
            key = ".".join(map(str, wrong["loc"])) or "its answer"
            raise ReplicaUnreachable(
                f"{self.admin}: {key}: {wrong['msg']}: its Outrider differs from this one; install"
                " the same release in servers and controller"
            ) from None

    def _call(
        self, method: str, path: str, body: Any = None, timeout_s: float = 60
    ) -> tuple[int, Any]:
        try:
            return self.admin.call(method, path, body, api_key=self._token, timeout_s=timeout_s)
        except (OSError, http.client.HTTPException) as error:
            raise ReplicaUnreachable(
                f"{self.admin}: no answer ({error!r}); start the replica, or correct its address"
            ) from error


def _reason(answer: Any) -> str:
    """An error's text, in a form that a journal can hold."""
    reason = answer.get("error", answer) if isinstance(answer, dict) else answer
    return str(reason)[:2000].encode(errors="replace").decode()
