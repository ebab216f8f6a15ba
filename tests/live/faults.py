"""Faults in a live engine: the next loads fail after so many tensors."""

import dataclasses
from collections.abc import Iterator

import torch

from outrider.serving.vllm_hooks.draft_recorder import DraftExtension
from outrider.serving.vllm_hooks.swap_extension import Loaded

FAULT_EXTENSION = "tests.live.faults.FaultExtension"
FAULT = "failed on purpose"


@dataclasses.dataclass(frozen=True)
class Failing(Loaded):
    """A speculator whose files end early."""

    after: int = 0

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The first `after` tensors; all of them before the fault where there are fewer."""
        for index, named in enumerate(super().tensors()):
            if index == self.after:
                raise OSError(FAULT)
            yield named
        raise OSError(FAULT)


class FaultExtension(DraftExtension):
    """Methods that vLLM's worker gains."""

    _faults: tuple[int, ...] = ()

    def next_load_fails_after(self, tensors: int, times: int = 1) -> None:
        """The load after these is sound again."""
        self._faults = (tensors,) * times

    def _swap_load(self, speculator: Loaded) -> None:
        if self._faults:
            after, *left = self._faults
            self._faults = tuple(left)
            speculator = Failing(speculator.directory, speculator.states, after=after)
        super()._swap_load(speculator)
