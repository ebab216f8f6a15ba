"""States before layers are switched on and off, chosen by layer, and refused where they cannot be.

test_capture_extension.py compares them with transformers on a real engine.
"""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.model_executor.models.interfaces import SupportsEagle3

from outrider.serving.vllm_hooks.auxiliary_states import AuxiliaryStates

LAYERS = 6


class Decoder(torch.nn.Module):
    """Layer i adds i + 1 to its input; the state before layer i is returned if it is asked for."""

    aux_hidden_state_layers: tuple[int, ...] = ()

    def forward(self, state_NH: torch.Tensor) -> Any:
        states = []
        for index in range(LAYERS):
            if index in self.aux_hidden_state_layers:
                states.append(state_NH)
            state_NH = state_NH + index + 1
        if LAYERS in self.aux_hidden_state_layers:
            states.append(state_NH)
        return (-state_NH, states) if states else -state_NH


class Model(torch.nn.Module, SupportsEagle3):
    def __init__(self) -> None:
        super().__init__()
        self.model = Decoder()

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


def step(runner: SimpleNamespace) -> SimpleNamespace:
    """What the runners do: the flag decides how the model's output is unpacked."""
    output, auxiliary = runner.get_model().model(torch.zeros(3, 2)), None
    if runner.use_aux_hidden_state_outputs:
        output, auxiliary = output
    assert isinstance(output, torch.Tensor)
    return SimpleNamespace(hidden_states=output, aux_hidden_states=auxiliary)


def before(layer: int) -> float:
    """The value of the state before a layer."""
    return float(sum(range(1, layer + 1)))


def test_the_layers_of_a_served_drafter_are_read_and_stay() -> None:
    """Its config.json may list them in any order; the model returns them in its own."""
    engine = runner(served=(5, 1, 2), eager=False)
    auxiliary = AuxiliaryStates(engine, [2, 5])
    auxiliary.switch_on()
    found = auxiliary.of(step(engine))
    assert [state_NH[0, 0].item() for state_NH in found] == [before(2), before(5)]
    auxiliary.switch_off()
    assert len(step(engine).aux_hidden_states) == 3


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
