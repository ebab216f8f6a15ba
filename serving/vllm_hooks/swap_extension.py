"""Loads another speculator's weights, or another history, into a running engine's drafter.

    vllm serve ... --worker-extension-cls outrider.serving.vllm_hooks.swap_extension.SwapExtension

vLLM mixes `SwapExtension` into its worker. `swap` (serving/admin/swap.py) calls it through
`collective_rpc` between two steps, with files that have already been checked. Afterwards, either
the new or the old speculator is loaded. Weights change in place, so compiled code, CUDA graphs and
caches are kept.

A failed load leaves a mixture of old and new layers. A copy of the parameters cannot restore the
old ones, because a CPU's packed weights are not parameters, so the last good files are reloaded. If
this fails, reports have `broken` set until a load succeeds. Workers return errors in the report,
because if one raises, vLLM 0.32 leaves the others' answers unread. Written for both model
runners of vLLM 0.32.
"""

import dataclasses
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from outrider.serving.admin.swap import (
    FileStates,
    SwapReport,
    check_unchanged,
    file_states,
    unswappable,
)
from outrider.speculators.kinds import drafter_kind_of, trainable_kind_of
from outrider.speculators.kinds.protocol import TrainableKind, WeightlessKind


@dataclasses.dataclass(frozen=True)
class LoadedSpeculator:
    """A speculator that a worker drafts with."""

    directory: Path
    states: FileStates
    """State of each file at the time of the check."""
    digest: str = ""
    swap_id: str = ""


class SwapExtension:
    """Methods added to vLLM's worker; the annotated attributes are the worker's."""

    model_runner: Any
    vllm_config: Any

    _swap_current: LoadedSpeculator | None = None
    """The speculator in use; None means the one that the engine was started with."""
    _swap_previous: LoadedSpeculator | None = None
    """The speculator before the last swap; None if there is no swap to undo."""
    _swap_broken: str | None = None
    _swap_copies: dict[str, torch.Tensor] | None = None
    """The drafter's `context_copies` from before the first swap."""

    def speculator_report(self, error: str | None = None) -> SwapReport:
        """Reports the speculator that this worker drafts with."""
        current = self._swap_in_use()
        return {
            "directory": str(current.directory),
            "digest": current.digest,
            "error": error,
            "broken": self._swap_broken,
        }

    def speculator_load(
        self, directory: str, states: FileStates, digest: str, swap_id: str
    ) -> SwapReport:
        """Loads the speculator in `directory`, whose files had `states` when checked."""
        if refusal := unswappable(self.vllm_config.parallel_config):
            return self.speculator_report(refusal)
        old = self._swap_in_use()
        new = LoadedSpeculator(Path(directory), states, digest, swap_id)
        try:
            self._swap_load(new)
        except Exception as error:
            return self.speculator_report(self._swap_restored(error))
        self._swap_current = new
        self._swap_previous = old
        self._swap_broken = None
        return self.speculator_report()

    def speculator_take_back(self, swap_id: str) -> SwapReport:
        """Undoes the swap with this id, if this worker performed it."""
        previous = self._swap_previous
        if previous is None or self._swap_in_use().swap_id != swap_id:
            return self.speculator_report()
        try:
            self._swap_load(previous)
        except Exception as error:
            self._swap_broken = f"not taken back: {self._swap_restored(error)}"
            return self.speculator_report(self._swap_broken)
        self._swap_current = previous
        self._swap_previous = None
        self._swap_broken = None
        return self.speculator_report()

    def _swap_in_use(self) -> LoadedSpeculator:
        if self._swap_current is None:
            directory = Path(self.vllm_config.speculative_config.model)
            self._swap_current = LoadedSpeculator(directory, file_states(directory))
        return self._swap_current

    def _swap_restored(self, error: Exception) -> str:
        """After `error`, reloads the speculator in use; returns the error's message.

        If that fails too, this worker is broken.
        """
        reason = str(error) or repr(error)
        try:
            self._swap_load(self._swap_in_use())
        except Exception as second:
            reason = self._swap_broken = (
                f"{reason}; and then the speculator in use could not be loaded again: {second};"
                " drafts are wrong until the replica is started again"
            )
        return reason

    def _swap_load(self, speculator: LoadedSpeculator) -> None:
        check_unchanged(speculator.directory, speculator.states)
        kind = drafter_kind_of(speculator.directory)
        if isinstance(kind, WeightlessKind):
            kind.load_live(self.model_runner, speculator.directory)
        else:
            self._swap_weights(speculator)
        check_unchanged(speculator.directory, speculator.states)  # still unchanged after the load

    def _swap_weights(self, speculator: LoadedSpeculator) -> None:
        from vllm.config import set_current_vllm_config

        drafter = self.model_runner.get_draft_model()
        if self._swap_copies is None:
            self._swap_copies = context_copies(drafter.model)
        config = self.vllm_config.speculative_config.draft_model_config
        with set_current_vllm_config(self.vllm_config):
            replace_weights(
                runner=self.model_runner,
                drafter=drafter,
                model_config=config,
                directory=speculator.directory,
                copies=self._swap_copies,
            )
        torch.accelerator.synchronize()


def replace_weights(
    runner: Any,
    drafter: Any,
    model_config: Any,
    directory: Path,
    copies: dict[str, torch.Tensor],
) -> None:
    """Loads the speculator in `directory` into `drafter`, a model of `runner`.

    `copies` are the drafter's `context_copies` from before the first swap, because CUDA graphs hold
    their addresses. If this function raises, the drafter may hold a mixture of old and new weights.
    """
    from vllm.model_executor.model_loader.reload import (
        finalize_layerwise_reload,
        initialize_layerwise_reload,
    )

    kind = trainable_kind_of(directory)
    mask: list[torch.Tensor] = []

    def noting_mask() -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in kind.swap_tensors(directory):
            if name.endswith("mask_hidden"):
                mask.append(tensor)
            yield name, tensor

    for module in drafter.modules():
        # On a CPU, an MoE layer's method packs weights only if its kernel is not yet set up
        # (vllm/model_executor/layers/fused_moe/unquantized_fused_moe_method.py, lines 187 to 205).
        method: Any = getattr(module, "quant_method", None)
        if runner.device.type == "cpu" and getattr(method, "moe_kernel", None) is not None:
            method.moe_kernel = None
    initialize_layerwise_reload(drafter)
    try:
        # FP8 kernels may rename weights; only from here on do the names match the checkpoint's.
        expected = required_parameters(drafter, kind)
        loaded = load_drafter_weights(drafter, noting_mask())
    finally:  # a layer left on the meta device would crash the engine at the next request
        finalize_layerwise_reload(drafter, model_config)
    # The model's proposer is the `drafter` of model runner V1 or the `speculator` of V2.
    proposer = getattr(runner, "drafter", None) or runner.speculator
    for tensor in mask:
        load_mask(proposer, tensor)
    renew_draft_vocabulary(proposer)
    renew_context(drafter.model, copies)
    if missing := sorted(expected - loaded):
        raise RuntimeError(f"no weights for {', '.join(missing)}")


def load_mask(proposer: Any, mask: torch.Tensor) -> None:
    """Loads and projects the states that parallel drafters read for unknown tokens.

    vLLM 0.32 projects them once, after startup. Their buffer has no weight loader, so they
    are on the meta device during a reload and have no values afterwards.
    """
    # As in vllm/v1/spec_decode/llm_base_proposer.py, lines 1401 to 1411.
    proposer.model.mask_hidden.copy_(mask.view(1, -1))
    projected_H = proposer.model.combine_hidden_states(proposer.model.mask_hidden.view(-1))
    proposer.parallel_drafting_hidden_state_tensor.copy_(projected_H)


def renew_draft_vocabulary(proposer: Any) -> None:
    """Recomputes in place where a proposer writes the logits of a draft vocabulary.

    For sampled drafts, a DSpark head's proposer copies d2t once, when the engine starts
    (vllm/v1/worker/gpu/spec_decode/dspark/speculator.py, lines 93 to 108), and CUDA graphs hold the
    copy's address. Logits of tokens that can no longer be drafted must be -inf again.
    """
    index_D = getattr(proposer, "_d2t_scatter_index", None)
    if index_D is None:
        return
    d2t_D = proposer.model.draft_id_to_target_id
    index_D.copy_(torch.arange(len(d2t_D), device=d2t_D.device) + d2t_D)
    proposer._draft_scatter_buf.fill_(float("-inf"))


def context_copies(model: Any) -> dict[str, torch.Tensor]:
    """The weight copies that a model uses to project the target's states."""
    # Only a drafter that projects these states separately from its own tokens has copies, such as
    # DFlash (vllm/model_executor/models/qwen3_dflash.py, line 556).
    names = ("_fused_kv_weight", "_fused_kv_bias", "_k_norm_weights")
    tensors = {name: getattr(model, name, None) for name in names}
    return {name: tensor for name, tensor in tensors.items() if tensor is not None}


@torch.no_grad()
def renew_context(model: Any, copies: dict[str, torch.Tensor]) -> None:
    """Recomputes a model's `context_copies` in place.

    vLLM 0.32 computes them into new tensors at the end of loading, when rotary tables are still on
    the meta device and a CPU kernel may have packed the weights and dropped the originals. Without
    a copy, the model projects its context with the layer itself.
    """
    if not hasattr(model, "_build_fused_kv_buffers"):
        return
    model._build_fused_kv_buffers()
    if any(projection.weight.numel() == 0 for projection in model._context_qkv_projs):
        model._fused_kv_weight = model._fused_kv_bias = None
    for name, new in context_copies(model).items():
        if name in copies:
            setattr(model, name, copies[name].copy_(new))


def load_drafter_weights(drafter: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
    """Loads weights; returns vLLM's names for the parameters that were filled.

    Models with an EAGLE-3 head return nothing, but the loader that they call returns names. The
    loader calls itself for inner modules; the outermost call returns last, with all names.
    """
    from vllm.model_executor.models.utils import AutoWeightsLoader

    original = AutoWeightsLoader.load_weights
    names_per_call = list[set[str]]()

    def recording(self: Any, *args: Any, **kwargs: Any) -> set[str]:
        names: set[str] = original(self, *args, **kwargs)
        names_per_call.append(names)
        return names

    setattr(AutoWeightsLoader, "load_weights", recording)  # noqa: B010 (mypy rejects assignment)
    try:
        loaded: set[str] | None = drafter.load_weights(weights)
    finally:
        setattr(AutoWeightsLoader, "load_weights", original)  # noqa: B010
    if loaded is None:
        loaded = names_per_call[-1] if names_per_call else set()
    return loaded


def required_parameters(drafter: torch.nn.Module, kind: TrainableKind) -> set[str]:
    """The parameters that a speculator's directory must contain, under vLLM's names."""
    return {name for name, _ in drafter.named_parameters() if not kind.stays_with_target(name)}
