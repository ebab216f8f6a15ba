"""A slower drafter with the same drafts: its layer runs repeatedly, the last result counts.

As a worker extension, this module is imported by the worker, where it wraps the exchange.
"""

from typing import Any

from outrider.serving.admin.candidate import Candidate
from outrider.serving.vllm_hooks.weight_transfer import SafetensorsTransfer

REPEATS = 25
SLOW_DRAFTER_EXTENSION = "tests.eval.slow_drafter.SlowDrafterExtension"


class SlowDrafterExtension:
    """Has no methods of its own."""


_load = SafetensorsTransfer._load


def _paced_load(self: SafetensorsTransfer, candidate: Candidate) -> None:
    """Loads the weights, and sets the pace: slow while those of a directory `slow` are loaded."""
    for module in self.worker.model_runner.drafter.model.modules():
        if type(module).__name__ != "DeepSeekMultiTokenPredictorLayer":
            continue
        own = type(module).forward.__get__(module)

        def repeated(*args: Any, own: Any = own, **kwargs: Any) -> Any:
            for _ in range(REPEATS):
                own(*args, **kwargs)
            return own(*args, **kwargs)

        module.forward = repeated if candidate.directory.name == "slow" else own
    _load(self, candidate)


SafetensorsTransfer._load = _paced_load
