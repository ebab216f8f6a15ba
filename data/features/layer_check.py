"""Checks on a sample that the states captured before layers are those of the named layers.

Nothing in vLLM states which layer a tensor came from, and an R1 cannot be computed again here. So
the check counts. A short sample is captured with the states of every layer, a ladder of L rungs for
a target of L layers, each row alone. Three things must hold:

    top       the final norm over rung L is the captured final state, and over rung L - 1 it is not.
              With L rungs from L layers, in the order of the layers, each rung's layer is known
    finite    every value of every stream is a number
    nearest   each captured stream, taken with all others of the capture and in full batches, is at
              most positions nearer to its own rung than to any other

One layer off, streams in another order, a buffer that a later layer has overwritten, and rows of
another request all fail. What the engine computes differently in another batch does not: an expert
that flips moves a state less than a layer does, except at few positions. The top rung has the
positions of the final state, which self_check.py compares with the engine's own log-probabilities.

    check = layer_check(engine, rows, spec, *norm_and_layers(target_dir))
    require(check)

Shapes: T tokens of a row, H hidden, L rungs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outrider.common.errors import OutriderError
from outrider.data.features.self_check import Row
from outrider.speculators.checkpoints.architectures import FINAL_NORM_WEIGHT
from outrider.speculators.checkpoints.layout import read_layout
from outrider.speculators.checkpoints.tensors import CheckpointTensors
from outrider.speculators.features import FINAL_NORM, FeatureSpec, layer_index, layer_name

if TYPE_CHECKING:
    from outrider.serving.engine import Engine

LADDER_TOKENS = 512
"""Tokens of the ladder: all 61 of R1's rungs are 450 MB."""
MAX_TOP_ERROR = 0.02
"""Largest mean relative error of the final norm over the last rung. bf16 rounds by 0.004 at most;
nano R1 has 0.002, and 0.3 over the rung below."""
MIN_NEAREST = 0.95
"""Smallest share of positions whose nearest rung is the stream's own. nano R1 has 1.0."""


@dataclass(frozen=True)
class FinalNorm:
    """The target's last RMSNorm."""

    weight_H: Tensor
    eps: float

    def __call__(self, state_TH: Tensor) -> Tensor:
        """float32 [T, H]."""
        wide_TH = state_TH.float()
        variance_T = wide_TH.square().mean(-1, keepdim=True)
        return wide_TH * torch.rsqrt(variance_T + self.eps) * self.weight_H.float()


def norm_and_layers(target_dir: Path) -> tuple[FinalNorm, int]:
    """The target's last norm, from its checkpoint, and its number of layers."""
    layout = read_layout(target_dir)
    weight_H = CheckpointTensors(layout).read(FINAL_NORM_WEIGHT, torch.float32)
    norm = FinalNorm(weight_H, layout.config["rms_norm_eps"])
    return norm, layout.config["num_hidden_layers"]


@dataclass(frozen=True)
class StreamCheck:
    """One captured stream against the ladder."""

    finite: bool
    nearest: float
    """Share of positions whose nearest rung is the stream's own."""
    error: float
    """Mean relative distance to its own rung, which was computed in another batch."""
    neighbour_error: float
    """Smallest mean relative distance to another rung: what one layer off would give."""


@dataclass(frozen=True)
class LayerCheck:
    """The captured streams of a sample against the states of every layer."""

    layers: int
    """L of the target."""
    positions: int
    top_error: float
    """Mean relative error of the final norm over the last rung against the captured final state."""
    below_top_error: float
    """The same over the rung below: what one layer off would give."""
    streams: dict[str, StreamCheck]

    def describe(self) -> str:
        """The numbers in two sentences."""
        streams = "; ".join(
            f"{name} nearest to its own of {self.layers} layers at {found.nearest:.2%}, relative"
            f" difference {found.error:.1e} ({found.neighbour_error:.1e} to another layer)"
            + ("" if found.finite else ", NOT FINITE")
            for name, found in self.streams.items()
        )
        return (
            f"layer check on {self.positions} positions: the final norm over the state after layer"
            f" {self.layers} differs from the captured one by {self.top_error:.1e}, one layer"
            f" earlier by {self.below_top_error:.1e}. {streams}"
        )


def layer_check(
    engine: "Engine", rows: Sequence[Row], spec: FeatureSpec, norm: FinalNorm, layers: int
) -> LayerCheck:
    """Captures `rows` as the capture does, their beginnings with all `layers` layers; compares."""
    each = max(LADDER_TOKENS // len(rows), 1)
    prompts = [(row_id, token_ids) for row_id, token_ids, _ in rows]
    beginnings = [(row_id, token_ids[:each]) for row_id, token_ids in prompts]
    names = [stream.name for stream in spec.auxiliary]
    captured = {row_id: states for row_id, states, _ in engine.prefill(prompts, names)}
    rungs = [layer_name(index) for index in range(1, layers + 1)]
    finals, ladders, taken = [], [], []
    # A limit of one token makes every row a separate batch.
    for row_id, ladder, _ in engine.prefill(beginnings, [FINAL_NORM, *rungs], 1):
        finals.append(ladder.pop(FINAL_NORM).float())
        ladders.append(torch.stack([ladder[name] for name in rungs]))
        taken.append({name: state_TH[:each] for name, state_TH in captured[row_id].items()})
    final_TH, ladder_LTH = torch.cat(finals), torch.cat(ladders, dim=1)
    top_L = [_relative(norm(rung_TH), final_TH).mean().item() for rung_TH in ladder_LTH[-2:]]
    finite = {
        name: all(bool(states[name].isfinite().all()) for states in captured.values())
        for name in names
    }
    return LayerCheck(
        layers=layers,
        positions=len(final_TH),
        top_error=top_L[-1],
        below_top_error=top_L[0],
        streams={
            name: _stream_check(
                torch.cat([states[name] for states in taken]), ladder_LTH, name, finite[name]
            )
            for name in names
        },
    )


def _stream_check(state_TH: Tensor, ladder_LTH: Tensor, name: str, finite: bool) -> StreamCheck:
    own, wide_TH = layer_index(name) - 1, state_TH.float()
    error_LT = torch.stack([_relative(wide_TH, rung_TH.float()) for rung_TH in ladder_LTH])
    others_LT = torch.cat([error_LT[:own], error_LT[own + 1 :]])
    # False for NaN, and where two rungs are equal.
    nearest_T = (error_LT[own] < others_LT).all(0)
    return StreamCheck(
        finite=finite,
        nearest=nearest_T.float().mean().item(),
        error=error_LT[own].mean().item(),
        neighbour_error=others_LT.mean(-1).min().item(),
    )


def _relative(state_TH: Tensor, reference_TH: Tensor) -> Tensor:
    return (state_TH - reference_TH).norm(dim=-1) / reference_TH.norm(dim=-1)


def require(check: LayerCheck) -> None:
    """Raises an `OutriderError` where a stream is not the one that its name says."""
    # Written so that a NaN fails too.
    top = check.top_error <= MAX_TOP_ERROR and check.top_error < check.below_top_error / 2
    if top and all(
        found.finite and found.nearest >= MIN_NEAREST for found in check.streams.values()
    ):
        return
    raise OutriderError(
        f"{check.describe()}. Allowed are {MAX_TOP_ERROR} for the final norm, at most half of one"
        f" layer earlier, and every stream nearest to its own layer at {MIN_NEAREST:.0%} of the"
        " positions. Usual causes: a vLLM that counts layers in another way or reuses a state's"
        " memory; engine and checkpoint from different revisions of the target"
    )
