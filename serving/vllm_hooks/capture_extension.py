"""Captures vLLM's hidden states: after the final norm and before chosen layers.

The states are the model's outputs, read from the model runner after each step, so no layer needs a
hook. States after the final norm are available in every mode. For EAGLE-3 drafters, vLLM's models
also return the states before certain layers: the model holds the layer numbers, and the runner has
a flag to unpack the states. An eager engine can switch these states on and off between two requests
(`AuxiliaryStates`). A forward hook would have to handle the fused norm, which changes the residual
in place. The scheduler's output has each request's first position and number of tokens, so rows are
attributed correctly even if a prompt is prefilled in chunks, preempted, or batched with others.
Prefix caching must be off, because a cached position is never computed. With tensor parallelism,
every rank of the last pipeline stage holds the same states, and its first rank keeps them. Written
for both model runners of vLLM 0.32.

vLLM 0.32 can also write states by itself, with `method: extract_hidden_states` and its
`ExampleHiddenStatesConnector`, a "simple debug implementation" (distributed/kv_transfer/
kv_connector/v1/example_hidden_states_connector.py:100). Outrider cannot use it:

- The connector needs the states in a KV cache group of their own; its error message excludes
  targets with MLA, such as R1 (same file, :139).
- It copies states with CUDA streams and events (same file, :386 and :390). CPUs have none.
- It has residual streams only. The last one is taken before the final norm
  (model_executor/models/deepseek_v2.py:1586), but the target's head reads the normed state.
- The layers are fixed when the engine starts (v1/spec_decode/extract_hidden_states.py,
  `eagle_aux_hidden_state_layer_ids`), and the method takes the drafter's place
  (config/speculative.py:1242). Layer checks and draft parity would need other engines.
- States occupy the KV cache until their request ends, and the cache must not be quantized
  (model_executor/models/extract_hidden_states.py:243).
- It does not score completions, for which the logits must be computed where the states are.

A request may carry a claim: the sampling parameters logged for it. Its completion is then scored
with the engine's head, and the scores are summed on the device of the states (logged_text.py).

vLLM mixes `CaptureExtension` into its worker (`worker_extension_cls`); `Engine` calls it by RPC:

    llm.collective_rpc("capture_start", args=([2, 8, 13],))
    llm.generate(...)
    index = llm.collective_rpc("capture_stop", args=(folder,))
    for states_STH, sums_PC in read_states(index, [(request_id, token_ids)]): ...

Shapes: S streams (the final norm, then layers in order), T tokens of a prompt, N tokens of a step,
H hidden size, C columns of scores in P parts of a completion.
"""

import contextlib
import dataclasses
import functools
import hashlib
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from outrider.common.errors import OutriderError
from outrider.serving.logged_text import (
    REQUEST_ARGUMENT,
    Claim,
    RequestSlice,
    ScoredCompletion,
    score_step,
)
from outrider.serving.vllm_hooks.grammar_masks import GrammarMasks
from outrider.serving.vllm_hooks.swap_extension import SwapExtension

PART, FAILED = ".part", ".failed"
"""Suffixes of an unfinished states file and of the file that holds a failure's reason."""


class _Prompt:
    """One request's states while its prompt is being prefilled.

    Not in pinned memory: torch rounds each pinned tensor up to a power of two and never frees it,
    which took five times the memory. R1 copies 235 MB for 16,384 tokens in a step of a second.
    """

    def __init__(self, token_ids: Sequence[int], streams: int, hidden_size: int) -> None:
        self.digest = _digest(token_ids)
        self.length = len(token_ids)
        shape = (streams, self.length, hidden_size)
        self.states_STH = torch.empty(shape, dtype=torch.bfloat16)
        self.filled = 0

    def put(self, start: int, rows: Sequence[torch.Tensor]) -> None:
        """Stores the rows [N, H] of each stream from position `start` on."""
        if start > self.filled:
            raise RuntimeError(
                f"positions {self.filled} to {start - 1} were never computed; is prefix caching on?"
            )
        end = min(start + len(rows[0]), self.length)
        for state_TH, rows_NH in zip(self.states_STH, rows, strict=True):
            state_TH[start:end].copy_(rows_NH[: end - start])
        self.filled = max(self.filled, end)


class AuxiliaryStates:
    """Residual streams before `layers` (ascending) of a worker's model runner.

    An engine that serves an EAGLE-3 drafter can return only the states that the drafter reads,
    because vLLM passes all returned states to the drafter.
    """

    def __init__(self, runner: Any, layers: Sequence[int]) -> None:
        """Makes the model return the states from the next step until `switch_off`.

        Raises a `RuntimeError` if this engine cannot return them.
        """
        self._runner = runner
        self._layers = tuple(layers)
        self._switched = bool(layers) and not runner.use_aux_hidden_state_outputs
        if layers:
            self._check()
        if self._switched:
            runner.get_model().set_aux_hidden_state_layers(self._layers)
            runner.use_aux_hidden_state_outputs = True

    def switch_off(self) -> None:
        """Restores what the model returned before."""
        if self._switched:
            self._runner.get_model().set_aux_hidden_state_layers(())
            self._runner.use_aux_hidden_state_outputs = self._switched = False

    def of(self, state: Any) -> list[torch.Tensor]:
        """The states [N, H] of a step, in the order of `layers`."""
        if not self._layers:
            return []
        returned = _layers_of(self._runner.get_model())
        if len(state.aux_hidden_states) != len(returned):
            raise RuntimeError(
                f"the model returned {len(state.aux_hidden_states)} states for layers {returned}"
            )
        by_layer = dict(zip(returned, state.aux_hidden_states, strict=True))
        return [by_layer[layer] for layer in self._layers]

    def _check(self) -> None:
        from vllm.model_executor.models.interfaces import supports_eagle3

        runner = self._runner
        config = self._runner.vllm_config
        model = runner.get_model()
        if config.parallel_config.pipeline_parallel_size > 1:
            raise RuntimeError(
                "with pipeline parallelism the last stage has the states of its own layers only;"
                " capture with pipeline_parallel_size 1"
            )
        last = config.model_config.get_total_num_hidden_layers()
        if self._layers[0] < 1 or self._layers[-1] > last:
            raise RuntimeError(
                f"layers {list(self._layers)}: this model has the states of 1 to {last}"
            )
        if not supports_eagle3(model):
            raise RuntimeError(
                f"vLLM's {type(model).__name__} does not expose hidden states of its layers; use"
                " speculator.kind=mtp"
            )
        if runner.use_aux_hidden_state_outputs:
            served = _layers_of(model)
            missing = sorted(set(self._layers) - set(served))
            if missing:
                raise RuntimeError(
                    f"the served drafter reads layers {served}; this engine cannot return layers"
                    f" {missing} too"
                )
        elif runner.speculative_config is not None:
            raise RuntimeError(
                "the served drafter would read the states of the layers; capture without one"
            )
        elif not config.model_config.enforce_eager:
            raise RuntimeError("a compiled model cannot change what it returns; capture eagerly")


def _layers_of(model: Any) -> list[int]:
    """Layers whose states are returned, in ascending order, as the model runs them."""
    # The decoder holds the layer numbers; its depth in the module tree depends on the model.
    holder = next(part for part in model.modules() if hasattr(part, "aux_hidden_state_layers"))
    return sorted(holder.aux_hidden_state_layers)


class CaptureExtension(SwapExtension):
    """Methods added to vLLM's worker; the annotated attributes are the worker's."""

    model_config: Any
    vllm_config: Any
    is_driver_worker: bool

    def capture_start(self, layers: Sequence[int] = ()) -> None:
        """Captures all prompts' states from now on, including those before `layers`."""
        runner = self.model_runner
        self._capture_prompts: dict[str, _Prompt] = {}
        self._capture_texts: dict[str, ScoredCompletion] = {}
        self._capture_auxiliary = AuxiliaryStates(runner, layers)
        self._capture_wrapped = runner.execute_model
        runner.execute_model = self._capture_execute_model

    def capture_stop(self, folder: str) -> dict[str, Any] | None:
        """Ends the capture, writes the states below `folder`, and returns their index.

        A thread writes the file, so the next prompts can be prefilled meanwhile.
        """
        self.model_runner.execute_model = self._capture_wrapped
        self._capture_auxiliary.switch_off()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        prompts = self._capture_prompts
        self._capture_prompts = {}
        texts = self._capture_texts
        self._capture_texts = {}
        if not prompts:  # another rank keeps the states
            return None
        path = Path(folder) / f"{uuid.uuid4().hex}.bf16"
        requests: dict[str, Any] = {}
        for request_id, prompt in prompts.items():
            if prompt.filled < prompt.length:
                raise RuntimeError(
                    f"request {request_id}: {prompt.filled} of {prompt.length} prompt tokens were"
                    " computed"
                )
            sums = texts[request_id].sums_PC.tolist() if request_id in texts else None
            requests[external_id(request_id)] = [list(prompt.states_STH.shape), prompt.digest, sums]
        states = [prompt.states_STH for prompt in prompts.values()]
        threading.Thread(target=write_states, args=(path, states), name="states").start()
        return {"path": str(path), "requests": requests}

    def _capture_execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        result = self._capture_wrapped(scheduler_output, *args, **kwargs)
        # What the step computed, until `sample_tokens` takes it (gpu_model_runner.py, line 4267).
        state = self.model_runner.execute_model_state
        # The runner's state is None if nothing was scheduled. On pipeline stages before the last,
        # V1's is always None, and V2's has no hidden states.
        if state is None or state.hidden_states is None:
            return result
        states_NH = [state.hidden_states, *self._capture_auxiliary.of(state)]
        cached = scheduler_output.scheduled_cached_reqs
        starts = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for request in scheduler_output.scheduled_new_reqs:
            starts[request.req_id] = request.num_computed_tokens
            self._capture_expect(request, len(states_NH), state.hidden_states.shape[-1])
        steps: list[RequestSlice] = []
        row = 0
        # The step's batch, which gives the row order, is held by V2's state or V1's runner.
        holder = state if hasattr(state, "input_batch") else self.model_runner
        for request_id in holder.input_batch.req_ids:
            tokens = scheduler_output.num_scheduled_tokens[request_id]
            start = starts[request_id]
            prompt = self._capture_prompts.get(request_id)
            if prompt is not None and start < prompt.length:
                prompt.put(start, [state_NH[row : row + tokens] for state_NH in states_NH])
            if request_id in self._capture_texts:
                steps.append(RequestSlice(self._capture_texts[request_id], row, start, tokens))
            row += tokens
        score_step(
            steps=steps,
            hidden_NH=state.hidden_states,
            head=self.model_runner.model.compute_logits,
            vocabulary=self.model_config.get_vocab_size(),
            keep=self.is_driver_worker,
        )
        return result

    def _capture_expect(self, request: Any, streams: int, hidden_size: int) -> None:
        if self.is_driver_worker and request.req_id not in self._capture_prompts:
            self._capture_prompts[request.req_id] = _Prompt(
                request.prompt_token_ids, streams, hidden_size
            )
        claim = (request.sampling_params.extra_args or {}).get(REQUEST_ARGUMENT)
        if claim is not None and request.req_id not in self._capture_texts:
            ids = request.prompt_token_ids
            logged = Claim(*claim)
            masks = None
            if logged.grammar:
                masks = self._capture_grammars.of(logged.grammar, ids, logged.completion_start)
            self._capture_texts[request.req_id] = ScoredCompletion(ids, logged, masks)

    @functools.cached_property
    def _capture_grammars(self) -> GrammarMasks:
        return GrammarMasks(
            target_dir=Path(self.model_config.model),
            vocabulary=self.model_config.get_vocab_size(),
            settings=dataclasses.asdict(self.vllm_config.structured_outputs_config),
        )


def write_states(path: Path, states: list[torch.Tensor]) -> None:
    """Writes the states one by one, freeing each; `path` appears when complete.

    `torch.save` would hold all of them until the end, take 1.6 times as long because of its
    checksum, and hide the cause if the disk is full. After a failure, the file with the suffix
    FAILED has the reason.
    """
    part = path.with_suffix(PART)
    try:
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            while states:
                file.write(states.pop(0).view(torch.int16).numpy().data)
        part.rename(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # the folder is gone if the capture was stopped
            part.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            path.with_suffix(FAILED).write_text(str(error), encoding="utf-8")


def read_states(
    results: Sequence[dict[str, Any] | None],
    requests: Iterable[tuple[str, Sequence[int]]],
    check: Callable[[], object] = lambda: None,
) -> Iterator[tuple[torch.Tensor, list[list[float]] | None]]:
    """Yields requests' states [S, T, H] and their claims' sums [2, C].

    `results` are those of `capture_stop` on all ranks; `requests` are pairs of an id from
    `LLM.generate` and token ids. `check` is called until the file of states is written, and raises
    if the engine has ended; the file is then mapped and removed. Raises an `OutriderError` if the
    states were not written or the engine prefilled different tokens.
    """
    index = next(result for result in results if result is not None)
    path = Path(index["path"])
    while not path.exists():
        failed = path.with_suffix(FAILED)
        if failed.exists():
            raise OutriderError(f"{path.parent}: the states were not written: {failed.read_text()}")
        check()
        time.sleep(0.005)
    sizes = [math.prod(shape) for shape, _, _ in index["requests"].values()]
    try:
        states = torch.from_file(str(path), size=sum(sizes), dtype=torch.bfloat16).split(sizes)
    finally:
        path.unlink()
    by_id = dict(zip(index["requests"], states, strict=True))
    for request_id, token_ids in requests:
        shape, digest, sums = index["requests"][request_id]
        if digest != _digest(token_ids):
            raise OutriderError(
                f"captured request {request_id}: the engine prefilled tokens other than those it"
                " was given; this vLLM numbers its requests in a way that Outrider does not know"
            )
        yield by_id.pop(request_id).view(shape), sums


def external_id(request_id: str) -> str:
    """The id that `LLM.generate` returned; inside the engine it is "<that id>-<hash>"."""
    # vllm/v1/engine/input_processor.py, line 371
    return request_id.rpartition("-")[0] or request_id


def _digest(token_ids: Sequence[int]) -> str:
    return hashlib.sha256(np.asarray(token_ids, np.int32).tobytes()).hexdigest()
