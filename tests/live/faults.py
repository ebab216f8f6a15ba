"""Faults in a live engine: the next loads fail after so many tensors."""

from collections.abc import Iterable, Iterator

import pytest
import torch

from outrider.serving.vllm_hooks import swap_extension
from outrider.serving.vllm_hooks.draft_recorder import DraftExtension

FAULT_EXTENSION = "tests.live.faults.FaultExtension"
FAULT = "failed on purpose"
load = swap_extension.load_drafter_weights


def ending(
    weights: Iterable[tuple[str, torch.Tensor]], after: int
) -> Iterator[tuple[str, torch.Tensor]]:
    """The first `after` tensors; all of them before the fault where there are fewer."""
    for index, tensor in enumerate(weights):
        if index == after:
            raise OSError(FAULT)
        yield tensor
    raise OSError(FAULT)


class FaultExtension(DraftExtension):
    """Methods that vLLM's worker gains."""

    _faults: tuple[int, ...] = ()

    def next_load_fails_after(self, tensors: int, times: int = 1) -> None:
        """The load after these is sound again."""
        self._faults = (tensors,) * times

    def _swap_load(self, speculator: swap_extension.LoadedSpeculator) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if self._faults:
                after, *left = self._faults
                self._faults = tuple(left)
                patch.setattr(
                    swap_extension,
                    "load_drafter_weights",
                    lambda drafter, weights: load(drafter, ending(weights, after)),
                )
            super()._swap_load(speculator)
