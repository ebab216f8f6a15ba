"""Lets the target's model return the residual streams before some of its layers.

    with_layers = AuxiliaryStates(worker.model_runner, (2, 8, 13))
    with_layers.switch_on(); ...; states_NH = with_layers.of(runner.execute_model_state)
    with_layers.switch_off()

vLLM's models return these states themselves for EAGLE-3 drafters: the model holds the layers, and
the runner holds a flag by which it unpacks them and keeps them with the step's state. Both runners
read the flag and the layers at every step as long as the model is neither compiled nor in CUDA
graphs, so an eager engine is switched on and off between two requests. A forward hook would have
to know that the fused norm changes the residual in place; the model's own code does.

An engine that serves an EAGLE-3 drafter returns that drafter's layers all the time, in any mode.
It cannot return others: the drafter would read them.
"""

from collections.abc import Sequence
from typing import Any

import torch


class AuxiliaryStates:
    """The residual streams before `layers`, ascending, of a worker's model runner."""

    def __init__(self, runner: Any, layers: Sequence[int]) -> None:
        """A `RuntimeError` where this engine cannot return them."""
        self._runner, self._layers = runner, tuple(layers)
        self._switched = False
        if layers:
            self._check()

    def switch_on(self) -> None:
        """From the next step on the model returns the states."""
        if not self._layers or self._runner.use_aux_hidden_state_outputs:
            return
        self._runner.get_model().set_aux_hidden_state_layers(self._layers)
        self._runner.use_aux_hidden_state_outputs = self._switched = True

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

        runner, config = self._runner, self._runner.vllm_config
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
            raise RuntimeError(f"{type(model).__name__} returns no states of its layers in vLLM")
        if runner.use_aux_hidden_state_outputs:
            served = _layers_of(model)
            if missing := sorted(set(self._layers) - set(served)):
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
    """The layers of the returned states: the model goes through its layers in order."""
    # The decoder holds them; how deep it lies depends on the model.
    holder = next(part for part in model.modules() if hasattr(part, "aux_hidden_state_layers"))
    return sorted(holder.aux_hidden_state_layers)
