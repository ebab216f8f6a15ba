"""Planted faults: a slower drafter with the same drafts, slow hits, lossy drafts, a slow start.

While weights of a directory `slow` are loaded, the layer runs repeatedly and the last result
counts; with those of `slow_prefix`, a request that finds its prefix in the cache sleeps first, and
loses LOSS of its tokens/s; with those of `relaxed`, 25 % of drafts are accepted whatever the target
says. An engine with SLOW_START in its environment sleeps in every step. As a worker extension, this
module is imported by the worker, where it wraps swaps, rejection sampler and model runner.
"""

import os
import time
from typing import Any

import torch
from vllm.v1.sample import rejection_sampler
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from outrider.serving.vllm_hooks.swap_extension import LoadedSpeculator, SwapExtension

REPEATS = 25
RELAXED = 0.25
LOSS = 0.1
SLOW_START, SLEEP = "OUTRIDER_PLANTED_SLOW_START", 1.0
"""Of the environment; seconds asleep over those of the target's pass."""
SLOW_DRAFTER_EXTENSION = "tests.eval.slow_drafter.SlowDrafterExtension"


_sample = rejection_sampler.rejection_sample
_execute = GPUModelRunner.execute_model
_planted = {"relaxed": False, "slow_prefix": False}
_times = {"began": 0.0, "ended": 0.0}
"""Of the last request that found its prefix: when it was awake, and the end of its last step."""


def _relaxed_sample(drafts: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The target becomes sure of some drafts."""
    logits = args[4]
    if _planted["relaxed"]:
        rows = (torch.rand(len(drafts)) < RELAXED).nonzero()[:, 0]
        logits[rows, drafts[rows].long()] = 1e6
    return _sample(drafts, *args, **kwargs)


class SlowDrafterExtension(SwapExtension):
    """Loads the weights, and plants the fault that their directory is named after."""

    def _swap_load(self, speculator: LoadedSpeculator) -> None:
        for fault in _planted:
            _planted[fault] = speculator.directory.name == fault
        for module in self.model_runner.drafter.model.modules():
            if type(module).__name__ != "DeepSeekMultiTokenPredictorLayer":
                continue
            own = type(module).forward.__get__(module)

            def repeated(*args: Any, own: Any = own, **kwargs: Any) -> Any:
                for _ in range(REPEATS):
                    own(*args, **kwargs)
                return own(*args, **kwargs)

            module.forward = repeated if speculator.directory.name == "slow" else own
        super()._swap_load(speculator)


def _slow_execute(self: GPUModelRunner, *args: Any, **kwargs: Any) -> Any:
    began = time.monotonic()
    found = _execute(self, *args, **kwargs)
    time.sleep(SLEEP * (time.monotonic() - began))
    return found


def _slow_hits_execute(self: GPUModelRunner, output: Any, *args: Any, **kwargs: Any) -> Any:
    started = output.scheduled_new_reqs
    if _planted["slow_prefix"] and any(request.num_computed_tokens for request in started):
        # As long as LOSS of the tokens/s takes that a request of the same length had before.
        time.sleep(LOSS / (1 - LOSS) * (_times["ended"] - _times["began"]))
        _times["began"] = time.monotonic()
    result = _execute(self, output, *args, **kwargs)
    # A step without tokens follows the last one of any request.
    if _planted["slow_prefix"] and output.total_num_scheduled_tokens and not started:
        _times["ended"] = time.monotonic()
    return result


if SLOW_START in os.environ:
    GPUModelRunner.execute_model = _slow_execute
else:
    GPUModelRunner.execute_model = _slow_hits_execute
rejection_sampler.rejection_sample = _relaxed_sample
