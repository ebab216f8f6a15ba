"""Engines that cannot return states before layers refuse.

test_capture_extension.py compares the states with transformers on a real engine, and
tests/serving/test_other_speculators.py reads those of a served EAGLE-3 drafter.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.model_executor.models.interfaces import SupportsEagle3

from outrider.serving.vllm_hooks.capture_extension import AuxiliaryStates

LAYERS = 6


class Model(torch.nn.Module, SupportsEagle3):
    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Identity()

    def set_aux_hidden_state_layers(self, layers: tuple[int, ...]) -> None:
        self.model.aux_hidden_state_layers = layers


def runner(served: Sequence[int] = (), model: Any = None, **changed: Any) -> SimpleNamespace:
    """A model runner of an eager engine; `served` are the layers of its EAGLE-3 drafter."""
    model = model or Model()
    if served:
        model.set_aux_hidden_state_layers(tuple(served))
    settings = {"stages": 1, "eager": True, "drafter": object() if served else None} | changed
    return SimpleNamespace(
        get_model=lambda: model,
        use_aux_hidden_state_outputs=bool(served),
        speculative_config=settings["drafter"],
        vllm_config=SimpleNamespace(
            parallel_config=SimpleNamespace(pipeline_parallel_size=settings["stages"]),
            model_config=SimpleNamespace(
                enforce_eager=settings["eager"], get_total_num_hidden_layers=lambda: LAYERS
            ),
        ),
    )


@pytest.mark.parametrize(
    ("engine", "layers", "message"),
    [
        (runner(stages=2), [2], "capture with pipeline_parallel_size 1"),
        (runner(), [0], "this model has the states of 1 to 6"),
        (runner(), [2, 7], "this model has the states of 1 to 6"),
        (runner(model=torch.nn.Linear(1, 1)), [2], "Linear returns no states of its layers"),
        (runner(served=(2, 3)), [2, 4], r"reads layers \[2, 3\]; .* cannot return layers \[4\]"),
        (runner(drafter=object()), [2], "drafter would read the states"),
        (runner(eager=False), [2], "a compiled model cannot change"),
    ],
)
def test_an_engine_that_cannot_return_them_is_refused(
    engine: SimpleNamespace, layers: list[int], message: str
) -> None:
    with pytest.raises(RuntimeError, match=message):
        AuxiliaryStates(engine, layers)
