"""Suffix lookup: drafts what most often followed the same tokens, in all responses so far.

    directory = SuffixLookup().prepare(responses, folder, max_gb=1.0, shared=True)
    lookup = Lookup("suffix", {"suffix_decoding_max_spec_factor": 2.0}, directory / HISTORY_FILE)
    SuffixLookup().drafts(token_ids_T, first=10, numbers=[4, 8], lookup=lookup)

It searches the request and a history: responses to earlier requests (lookup_history.py). vLLM's own
cache of live responses is off: it would show a tenant's text to others, and to an evaluation's
servers, which answer the same prompts several times, their own answers. The history is loaded when
an engine starts, and a live engine loads another one between two steps.

Shapes: T tokens of a sequence, A anchors, N numbers of drafts per step, K drafts.
"""

import functools
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.layout import CheckpointLayout
from outrider.speculators.kinds.protocol import (
    NO_DRAFT,
    KPerBatchSize,
    Lookup,
    Matches,
    Settings,
    WeightlessKind,
)
from outrider.speculators.kinds.suffix_package import INSTALL, install_suffix, installed_suffix
from outrider.speculators.lookup_history import (
    HISTORY_FILE,
    EarlierResponse,
    History,
    read_history,
    salt_of,
    tenant_key,
)
from outrider.speculators.suffix_array import DEPTH

if TYPE_CHECKING:
    from outrider.speculators.kinds.suffix_search import SearchedHistory

FACTOR, PROBABILITY = "suffix_decoding_max_spec_factor", "suffix_decoding_min_token_prob"
"""vLLM's keys for the drafts per matched token and for the least share of each draft."""

_TENANT = "outrider_tenant"
"""Attribute of vLLM's messages about new requests: the request's `tenant_key`."""


class SuffixLookup(WeightlessKind):
    """Drafts what most often followed the longest match in request and earlier responses."""

    name = "suffix"
    in_words = "suffix lookup"
    only_runner = "v1"
    source_of_drafts = (
        "what most often followed the same tokens in the request and in the responses to earlier"
        " requests"
    )
    package = "arctic-inference"
    serving_note = f"Servers need Outrider, for the history, and a package: `{INSTALL}`."

    # vllm/config/speculative.py:515 and 520 (vLLM 0.32).
    default_settings: ClassVar[Settings] = {FACTOR: 1.0, PROBABILITY: 0.1}
    searched_settings: ClassVar[Sequence[Settings]] = tuple(
        {FACTOR: factor, PROBABILITY: probability}
        for factor, probability in itertools.product((1.0, 2.0, 4.0), (0.3, 0.1))
    )

    def require_installed(self) -> None:
        """Raises an `OutriderError` without arctic-inference, which vLLM does not depend on."""
        lookup_cache()

    def package_version(self) -> str | None:
        """The version of what is installed of arctic-inference."""
        return installed_suffix()

    def install_package(self) -> None:
        """Downloads, compiles and installs the suffix decoding of arctic-inference: a minute."""
        install_suffix()

    def prepare(
        self, responses: Iterable[EarlierResponse], folder: Path, *, max_gb: float, shared: bool
    ) -> Path:
        """Writes the earlier responses that are searched to HISTORY_FILE."""
        History.of(responses, max_gb, shared).write(folder / HISTORY_FILE)
        replay_cache.cache_clear()  # it may hold what the file had before
        return folder

    def history(self, directory: Path | None) -> Path | None:
        """HISTORY_FILE in the directory."""
        return directory / HISTORY_FILE if directory else None

    def separates_tenants(self, directory: Path | None) -> bool:
        """Whether the history has the responses of several tenants, and they are kept apart."""
        path = self.history(directory)
        return path is not None and read_history(path).has_several_tenants

    def check(self, directory: Path, target: CheckpointLayout) -> None:
        """Raises an `OutriderError` if the history is damaged or of another vocabulary."""
        _check_vocabulary(directory / HISTORY_FILE, target.config["vocab_size"])

    def vllm_settings(
        self,
        directory: Path | None,
        k: int,
        draft_sample_method: str,
        k_per_batch_size: KPerBatchSize | None,
    ) -> dict[str, Any] | None:
        """vLLM's settings; `model` names the directory of the history to `hook_engine`."""
        settings = super().vllm_settings(directory, k, draft_sample_method, k_per_batch_size) or {}
        return settings if directory is None else {**settings, "model": str(directory)}

    def hook_engine(self) -> None:
        """Gives vLLM's proposer the history and no live responses, and any number of drafts."""
        from vllm.v1.core.sched.output import NewRequestData
        from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer

        start = SuffixDecodingProposer.__init__
        propose = SuffixDecodingProposer.propose
        describe = NewRequestData.from_request
        if start.__module__ == __name__:
            return

        def init(self: Any, config: Any) -> None:
            start(self, config)
            self.suffix_cache = lookup_cache()
            model = config.speculative_config.model
            path = None if model == "suffix" else Path(model) / HISTORY_FILE
            if path is not None:
                # Nobody may have checked the bundle for this target, for instance in a cluster.
                _check_vocabulary(path, config.model_config.get_vocab_size())
            self.suffix_cache.load(path)
            _hook_runner()

        def propose_up_to(self: Any, k: int, *args: Any, **kwargs: Any) -> list[list[int]]:
            self.num_speculative_tokens = k  # vLLM 0.32 refuses any but the first
            return propose(self, k, *args, **kwargs)

        def with_tenant(request: Any, *args: Any, **kwargs: Any) -> Any:
            message = describe(request, *args, **kwargs)
            # vLLM 0.32 sends `cache_salt` to the scheduler only. Messages to workers are pickled,
            # with attributes that are no fields.
            vars(message)[_TENANT] = tenant_key(request.cache_salt)
            return message

        SuffixDecodingProposer.__init__ = init  # type: ignore[method-assign, assignment]
        SuffixDecodingProposer.propose = propose_up_to  # type: ignore[method-assign, assignment]
        NewRequestData.from_request = with_tenant  # type: ignore[method-assign]

    def load_live(self, runner: Any, directory: Path) -> None:
        """Searches the history in `directory` from the next step on."""
        runner.drafter.suffix_cache.load(directory / HISTORY_FILE)

    def drafts(
        self, token_ids_T: NDArray[np.int32], first: int, numbers: Sequence[int], lookup: Lookup
    ) -> NDArray[np.int32]:
        """Queries vLLM's cache at each anchor at which a step starts, for every number of drafts.

        Another number may give another match the best score, so each has queries of its own.
        """
        anchors = max(len(token_ids_T) - 1 - first, 0)
        drafts_NAK = np.full((len(numbers), anchors, max(numbers)), NO_DRAFT, np.int32)
        # The prefill delivers the token of anchor 0, where the first step starts.
        next_N = [0] * len(numbers)
        for anchor, draft in enumerate(self._by_anchor(token_ids_T, first, lookup)):
            for row, number in enumerate(numbers):
                if next_N[row] != anchor:
                    continue
                drafted = np.array(draft(number).token_ids, np.int32)
                drafts_NAK[row, anchor, : len(drafted)] = drafted
                end = first + anchor + 1
                next_N[row] = anchor + 1 + _accepted(drafted, token_ids_T[end:])
        return drafts_NAK

    def all_matches(
        self, token_ids_T: NDArray[np.int32], first: int, k: int, lookup: Lookup
    ) -> Matches:
        """Queries vLLM's cache at every anchor."""
        anchors = max(len(token_ids_T) - 1 - first, 0)
        drafts_AK = np.full((anchors, k), NO_DRAFT, np.int32)
        score_A = np.zeros(anchors)
        length_A = np.zeros(anchors, np.int64)
        for anchor, draft in enumerate(self._by_anchor(token_ids_T, first, lookup)):
            match = draft(k)
            drafts_AK[anchor, : len(match.token_ids)] = match.token_ids
            score_A[anchor] = match.score
            length_A[anchor] = match.match_len
        return Matches(drafts_AK, score_A, length_A)

    def _by_anchor(
        self, token_ids_T: NDArray[np.int32], first: int, lookup: Lookup
    ) -> Iterator[Callable[[int], Any]]:
        """Yields at each anchor a function that queries vLLM's cache for up to k drafts."""
        settings = {**self.default_settings, **lookup.settings}
        cache = replay_cache(lookup.history)
        # The evaluation sends `cache_salt` under the same condition.
        salt = salt_of(lookup.tenant) if cache.separates_tenants else None
        cache.tenants[self.name] = tenant_key(salt)
        cache.start_request(self.name, token_ids_T[:first])
        for end in range(first + 1, len(token_ids_T)):
            cache.add_active_response(self.name, token_ids_T[end - 1 : end])
            yield functools.partial(
                cache.speculate,
                self.name,
                token_ids_T[max(end - DEPTH, 0) : end],
                max_spec_factor=settings[FACTOR],
                min_token_prob=settings[PROBABILITY],
            )
        cache.stop_request(self.name)


def _check_vocabulary(path: Path, size: int) -> None:
    """Raises an `OutriderError` if a token of the history is not one of the target's.

    An engine that embeds such a draft ends, for all its requests.
    """
    largest = int(read_history(path).tokens_N.max())
    if largest >= size:
        raise OutriderError(
            f"{path}: token {largest}, but the target's vocabulary has {size}: a history of"
            " another target; export again"
        )


def _accepted(drafts_K: NDArray[np.int32], next_T: NDArray[np.int32]) -> int:
    """The number of drafts before the first that differs from the tokens that follow."""
    inside = min(len(drafts_K), len(next_T))
    differs = drafts_K[:inside] != next_T[:inside]
    return int(differs.argmax()) if differs.any() else inside


def _hook_runner() -> None:
    """Gives the proposer's cache each new request's tenant, and every step's tokens.

    While one request of a batch is near the context limit, vLLM 0.32 does not call the proposer
    (`_input_fits_in_drafter`, vllm/v1/worker/gpu_model_runner.py, line 4288). It would never see
    what the other requests were answered in these steps. It bounds its drafts by the limit itself.
    """
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    update = GPUModelRunner._update_states
    fits = GPUModelRunner._input_fits_in_drafter
    if update.__module__ == __name__:
        return

    def update_with_tenants(self: Any, output: Any) -> Any:
        tenants = self.drafter.suffix_cache.tenants
        for request_id in output.finished_req_ids:
            tenants.pop(request_id, None)
        for message in output.scheduled_new_reqs:
            # Without it, the request sees a shared history only.
            tenants[message.req_id] = vars(message).get(_TENANT)
        return update(self, output)

    def fits_in_drafter(self: Any, metadata: Any) -> bool:
        if self.speculative_config.method == SuffixLookup.name:
            return metadata is not None
        return fits(self, metadata)

    GPUModelRunner._update_states = update_with_tenants  # type: ignore[method-assign, assignment]
    GPUModelRunner._input_fits_in_drafter = fits_in_drafter  # type: ignore[method-assign, assignment]


@functools.cache
def replay_cache(history: Path | None) -> Any:
    """The cache of a server with this history and without requests of tenants; kept for replay."""
    cache = lookup_cache()
    cache.load(history)
    return cache


def lookup_cache() -> Any:
    """vLLM's cache for suffix lookup, with a history instead of the responses of live requests.

    Raises an `OutriderError` if the package that vLLM needs for it is missing.
    """
    try:
        from arctic_inference.suffix_decoding import SuffixDecodingCache, SuffixDecodingDraft
    except ImportError:
        raise OutriderError(
            f"suffix lookup: vLLM needs a package for it; run `{INSTALL}`, which takes a minute"
        ) from None

    class LookupCache(SuffixDecodingCache):
        def __init__(self) -> None:
            # Without cached requests, live responses extend only the tree of their own request.
            # In the shared tree, any other request would find them, even of another tenant.
            super().__init__(DEPTH, 0)
            self.tenants: dict[Hashable, bytes | None] = {}
            """`tenant_key` of each request; a request without one sees a shared history only."""
            self._history: SearchedHistory | None = None
            self.separates_tenants = False
            """Whether drafts depend on the request's tenant."""

        def load(self, path: Path | None) -> None:
            """Searches the responses in the file from now on; None: none."""
            # Here, because the commands import this module and numba takes a second to import.
            from outrider.speculators.kinds.suffix_search import SearchedHistory

            history = None if path is None else read_history(path)
            self._history = SearchedHistory(history) if history else None
            self.separates_tenants = history is not None and history.has_several_tenants

        def speculate(
            self,
            req_id: Hashable,
            context: NDArray[np.int32],
            max_spec_tokens: int,
            max_spec_factor: float,
            min_token_prob: float,
        ) -> Any:
            """The drafts with the better score: the request's own, or the history's."""
            draft = super().speculate(
                req_id,
                context,
                max_spec_tokens=max_spec_tokens,
                max_spec_factor=max_spec_factor,
                min_token_prob=min_token_prob,
            )
            if self._history is None:
                return draft
            drafts_K, score, length = self._history.drafts(
                context,
                self.tenants.get(req_id),
                k=max_spec_tokens,
                factor=max_spec_factor,
                least=min_token_prob,
            )
            if score <= draft.score:
                return draft
            return SuffixDecodingDraft(token_ids=drafts_K.tolist(), score=score, match_len=length)

    return LookupCache()
