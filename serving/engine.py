"""An in-process vLLM engine for capture and checks.

    with open_engine(TargetConfig(), EngineConfig()) as engine:
        for row, states in engine.prefill([("a", [0, 17, 4])]):
            states.hidden               # [T, H]

It reads hidden states, so it does not support every server setting (see `in_process`).
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np
import psutil

from outrider.common.errors import OutriderError
from outrider.common.files import SCRATCH
from outrider.common.process_tree import ProcessTree, changed_environment
from outrider.common.threads import in_daemon_thread
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.speculator import Drafting
from outrider.serving.vllm_arguments import (
    engine_arguments,
    engine_environment,
    start_limit_environment,
)
from outrider.serving.vllm_hooks.plugin import register
from outrider.serving.vllm_version import runs_on_cpu
from outrider.speculators.features import FINAL_NORM, SequenceStates, layer_index, layer_name

if TYPE_CHECKING:
    import torch
    from vllm import LLM, SamplingParams

Row = tuple[Any, ...]
"""(id, token ids, completion start, any further fields from the caller).
A row of only two fields is a prompt without a completion."""
SomeRow = TypeVar("SomeRow", bound=Row)
CONTRADICTS = {
    "prefill_context_parallel_size": "it divides a prompt's states over ranks",
    "kv_offloading_size": "offloaded prefixes are not computed again",
    "kv_offloading_backend": "offloaded prefixes are not computed again",
    "kv_sharing_fast_prefill": "it skips layers of the prompt",
    "enable_dbo": "it overlaps data-parallel engines, but there is one engine",
    "all2all_backend": "it connects data-parallel engines, but there is one engine",
    "enable_elastic_ep": "it adds data-parallel engines, but there is one engine",
    "optimization_level": "the engine is eager",
    "cudagraph_capture_sizes": "the engine is eager",
    "max_cudagraph_capture_size": "the engine is eager",
    "compilation_config": "the engine is eager",
}
"""vLLM arguments that are incompatible with reading states, each with the reason."""

CAPTURE_EXTENSION = "outrider.serving.vllm_hooks.capture_extension.CaptureExtension"


def in_process(engine: EngineConfig) -> tuple[EngineConfig, list[str]]:
    """Returns `engine` adapted to run in process, and one line per change."""
    # The memory of a prefill depends on both sizes. vLLM's defaults for `LLM` are up to 16,384 and
    # 1,024, larger than for servers.
    update: dict[str, object] = {
        "max_num_seqs": engine.seats,
        "max_num_batched_tokens": engine.max_num_batched_tokens or 2048,
    }
    changes = []
    arguments = engine.extra_arguments | {"enable_prefix_caching": False}
    if engine.extra_arguments.get("enable_prefix_caching"):
        changes.append("prefix_caching off: a cached position has no states")
    if engine.mode != "eager":
        update["mode"] = "eager"
        changes.append("mode eager: it starts in a fraction of the time and prefills as fast")
    if engine.data_parallel > 1 or engine.pipeline_parallel > 1:
        stages, replicas = engine.pipeline_parallel, engine.data_parallel
        ranks = engine.tensor_parallel * stages * replicas
        update |= {"tensor_parallel": ranks, "pipeline_parallel": 1, "data_parallel": 1}
        folded = {"pipeline_parallel": stages, "data_parallel": replicas}
        factors = "".join(f" x {name} {size}" for name, size in folded.items() if size > 1)
        changes.append(
            f"tensor_parallel {ranks} instead of {engine.tensor_parallel}{factors}: vLLM runs"
            " data-parallel engines in servers only, and a pipeline stage has the states of its own"
            " layers only"
        )
    refused = CONTRADICTS.keys() & arguments.keys()
    changes += [f"without {name}: {why}" for name, why in CONTRADICTS.items() if name in refused]
    update["extra_arguments"] = {
        name: value for name, value in arguments.items() if name not in refused
    }
    return engine.model_copy(update=update), changes


class PromptLogprobs(NamedTuple):
    """Log-probabilities of a prompt; entry i is for position i + 1."""

    logprobs: np.ndarray
    """float32 [T - 1]: log-probability of each token."""
    top_tokens: np.ndarray
    """int32 [T - 1]: the most likely token."""


class LoggedRow(NamedTuple):
    """A logged sequence and its sampling parameters."""

    row_id: str
    token_ids: Sequence[int]
    completion_start: int
    temperature: float
    top_p: float
    top_k: int = 0
    grammar: str = ""
    """The grammar of the completion, if it has one (GrammarMasks.of)."""


class AskedRow(NamedTuple):
    """A prompt for the target to answer, with its sampling parameters."""

    row_id: str
    token_ids: Sequence[int]
    temperature: float
    top_p: float
    max_tokens: int
    top_k: int = 0
    grammar: str = ""
    """JSON of one of vLLM's StructuredOutputsParams, or empty."""


class Engine:
    """A running vLLM engine, opened by `open_engine`."""

    def __init__(self, llm: "LLM", scratch: Path) -> None:
        self.llm, self._scratch = llm, scratch
        self.max_model_len = llm.model_config.max_model_len
        self._ahead: Future[Any] | None = None

    def prefill(
        self,
        rows: Iterable[SomeRow],
        streams: Sequence[str] = (FINAL_NORM,),
        batch_tokens: int = 65536,
        positions: int | None = None,
    ) -> Iterator[tuple[SomeRow, SequenceStates]]:
        """Yields each row with its states, in order.

        Streams other than `final_norm` need an engine without a drafter, or with a drafter that
        reads them (vllm_hooks/capture_extension.py). With `positions`, rows are `LoggedRow`s, and
        about `positions` completion tokens of each are scored (logged_text.py).

        Rows are prefilled in batches of at most `batch_tokens` tokens; the next batch runs while
        the caller reads the previous one. Larger batches are faster but hold more states in memory.
        """
        self._settle()
        groups = batches_by_tokens(rows, batch_tokens)

        def begin() -> Future[Callable[[], Iterator[tuple[SomeRow, SequenceStates]]]] | None:
            batch = next(groups, None)
            if batch is None:
                return None
            return in_daemon_thread(self.prefill_batch, batch, streams, positions)

        self._ahead = begin()
        while self._ahead is not None:
            read = self._ahead.result()
            self._ahead = begin()
            yield from read()

    def prefill_batch(
        self, rows: Sequence[SomeRow], streams: Sequence[str], positions: int | None = None
    ) -> Callable[[], Iterator[tuple[SomeRow, SequenceStates]]]:
        """Prefills one batch like `prefill`; returns a function that reads its states.

        Only one thread at a time may call this method; another may read earlier states meanwhile.
        """
        from outrider.serving.vllm_hooks.capture_extension import read_states

        layers = sorted({layer_index(name) for name in streams if name != FINAL_NORM})
        captured = [FINAL_NORM, *map(layer_name, layers)]
        self._check_lengths(rows)
        sampling = [_prefill_only(extra_args=_claim(row, positions)) for row in rows]
        self.llm.collective_rpc("capture_start", args=(layers,))
        outputs = self._together(rows, sampling)
        index = self.llm.collective_rpc("capture_stop", args=(str(self._scratch),))

        def check() -> None:
            if self._ahead is not None and self._ahead.done():
                self._ahead.result()  # raises if the engine has ended
            core: Any = self.llm.llm_engine.engine_core
            core.ensure_alive()

        def read() -> Iterator[tuple[SomeRow, SequenceStates]]:
            requests = [
                (output.request_id, row[1]) for output, row in zip(outputs, rows, strict=True)
            ]
            for row, captured_states in zip(rows, read_states(index, requests, check), strict=True):
                states_STH, scores = captured_states
                by_name = dict(zip(captured, states_STH, strict=True))
                yield row, _sequence_states(row, {name: by_name[name] for name in streams}, scores)

        return read

    def _settle(self) -> None:
        """Waits for the background batch, because only one thread may call vLLM."""
        if self._ahead is not None:
            self._ahead.exception()
        self._ahead = None

    def prompt_logprobs(self, rows: Sequence[tuple[str, Sequence[int]]]) -> list[PromptLogprobs]:
        """Returns the log-probabilities of each row's tokens except the first."""
        self._check_lengths(rows)
        self._settle()
        outputs: list[Any] = self.llm.generate(_prompts(rows), _prefill_only(1), use_tqdm=False)
        results = []
        for (_, token_ids), output in zip(rows, outputs, strict=True):
            positions = output.prompt_logprobs[1:]
            logprobs = [
                position[token].logprob
                for position, token in zip(positions, token_ids[1:], strict=True)
            ]
            tops = [min(position, key=lambda token: position[token].rank) for position in positions]
            results.append(PromptLogprobs(np.array(logprobs, np.float32), np.array(tops, np.int32)))
        return results

    def answer(self, rows: Sequence[AskedRow]) -> list[list[int]]:
        """Returns the target's answers as token ids, including a sampled end token.

        Requests are unseeded, because vLLM 0.32's CPU build fails if a request with a temperature
        above 0 has a seed.
        """
        from vllm import SamplingParams
        from vllm.sampling_params import StructuredOutputsParams

        self._check_lengths(rows)
        self._settle()
        sampling = [
            SamplingParams(
                temperature=row.temperature,
                top_p=row.top_p,
                top_k=row.top_k,
                max_tokens=row.max_tokens,
                structured_outputs=(
                    StructuredOutputsParams(**json.loads(row.grammar)) if row.grammar else None
                ),
                detokenize=False,
            )
            for row in rows
        ]
        outputs = self.llm.generate(_prompts(rows), sampling, use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]

    def _together(self, rows: Sequence[Row], sampling: "list[SamplingParams]") -> list[Any]:
        """Like `llm.generate`, but with reproducible batches.

        The engine starts computing only once it has all rows. Otherwise its first batches would
        depend on how fast rows arrive, and bf16 results depend on the batch.
        """
        # Level 0 stops scheduling, but requests are accepted (vllm/entrypoints/llm.py, line 843).
        self.llm.sleep(level=0)
        try:
            self.llm.enqueue(_prompts(rows), sampling, use_tqdm=False)
        finally:
            self.llm.wake_up(tags=["scheduling"])
        return self.llm.wait_for_completion(use_tqdm=False)

    def _check_lengths(self, rows: Sequence[Row]) -> None:
        for row_id, token_ids, *_ in rows:
            if not 0 < len(token_ids) < self.max_model_len:
                raise OutriderError(
                    f"sequence {row_id}: {len(token_ids)} tokens, but the engine prefills 1 to "
                    f"{self.max_model_len - 1}; raise serving.engine.max_model_len or leave the "
                    "sequence out"
                )


@contextlib.contextmanager
def open_engine(
    target: TargetConfig,
    engine: EngineConfig,
    drafting: Drafting | None = None,
    scratch: Path | None = None,
    extension: str = CAPTURE_EXTENSION,
) -> Iterator[Engine]:
    """Runs vLLM in this process with the capture extension or a subclass.

    Captured states pass from the worker to this process through files in `scratch`. The states
    reveal customer text, so the files are private and removed as they are read.
    """
    engine, _ = in_process(engine)
    arguments = engine_arguments(target, engine, drafting)
    with (
        ProcessTree() as tree,
        tempfile.TemporaryDirectory(dir=scratch, prefix=SCRATCH) as folder,
    ):
        variables = start_limit_environment(target.directory()) | engine_environment(engine)
        with changed_environment(variables | tree.environment):
            from vllm import LLM

            print("starting an engine", file=sys.stderr, flush=True)
            register()  # vLLM may have called it already, before these variables were set
            llm = LLM(**arguments, worker_extension_cls=extension)
        try:
            yield Engine(llm, Path(folder))
        finally:
            # On GPUs an orderly shutdown frees memory, NCCL's groups and /dev/shm for the next
            # stage. On a CPU it takes 4 to 7 s and frees nothing that is needed.
            # NoSuchProcess (a process just ended) is suppressed: it would mask the original error.
            with contextlib.suppress(psutil.NoSuchProcess):
                llm.llm_engine.engine_core.shutdown(timeout=0 if runs_on_cpu() else 30)


def _claim(row: Row, positions: int | None) -> dict[str, Any] | None:
    """The request's argument that has a `LoggedRow` scored; None without `positions`."""
    from outrider.serving.logged_text import REQUEST_ARGUMENT, Claim

    if positions is None:
        return None
    _, _, completion_start, temperature, top_p, top_k, grammar = row
    claim = Claim(
        completion_start=completion_start,
        temperature=temperature,
        top_p=top_p,
        positions=positions,
        top_k=top_k,
        grammar=grammar,
    )
    return {REQUEST_ARGUMENT: list(claim)}


def _sequence_states(
    row: Row, streams: "dict[str, torch.Tensor]", scores: list[list[float]] | None
) -> SequenceStates:
    import torch

    _, ids, *further = row
    token_ids = torch.as_tensor(ids, dtype=torch.int32)
    completion_start = further[0] if further else len(token_ids)
    return SequenceStates(token_ids, completion_start, streams, scores)


def _prompts(rows: Sequence[Row]) -> list[Any]:
    from vllm.inputs import TokensPrompt

    return [TokensPrompt(prompt_token_ids=list(token_ids)) for _, token_ids, *_ in rows]


def _prefill_only(
    prompt_logprobs: int | None = None, extra_args: dict[str, Any] | None = None
) -> "SamplingParams":
    from vllm import SamplingParams

    return SamplingParams(
        max_tokens=1,
        temperature=0.0,
        detokenize=False,
        prompt_logprobs=prompt_logprobs,
        extra_args=extra_args,
    )


def batches_by_tokens(rows: Iterable[SomeRow], batch_tokens: int) -> Iterator[list[SomeRow]]:
    """Yields batches of at most `batch_tokens` tokens, or of one longer row."""
    batch: list[SomeRow] = []
    tokens = 0
    for row in rows:
        if batch and tokens + len(row[1]) > batch_tokens:
            yield batch
            batch = []
            tokens = 0
        batch.append(row)
        tokens += len(row[1])
    if batch:
        yield batch
