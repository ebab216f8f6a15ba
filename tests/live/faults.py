"""Faults in a live engine: the next loads fail after so many tensors."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from outrider.serving.admin.candidate import Candidate
from outrider.serving.vllm_hooks.draft_recorder import DraftExtension

FAULT_EXTENSION = "tests.live.faults.FaultExtension"
FAULT = "failed on purpose"


@dataclasses.dataclass(frozen=True)
class Failing(Candidate):
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

    weight_transfer_engine: Any

    def next_load_fails_after(self, tensors: int, times: int = 1) -> None:
        """The load after these is sound again."""
        engine, left = self.weight_transfer_engine, [None] * times

        def failing(candidate: Candidate) -> None:
            left.pop()
            if not left:
                del engine._load
            fields = {f.name: getattr(candidate, f.name) for f in dataclasses.fields(Candidate)}
            type(engine)._load(engine, Failing(**fields, after=tensors))

        engine._load = failing
