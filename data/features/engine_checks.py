"""Before every capture, checks on a sample that the states are the target's.

**Self-check.** log softmax of lm_head over the final states must match the engine's own prompt
log-probabilities. A silent error (the state before the final norm, an index off by one, another
revision) changes them clearly; bf16 rounding and an occasional different expert do not. So the
check uses the 99th percentile and the top-1 agreement, never the maximum. The engine computes its
log-probabilities twice, in different batches; the allowed difference is at least the one between
these two runs plus a margin, up to a cap (common/tolerance.py).

**Layer check.** vLLM does not record which layer a tensor comes from, and R1 cannot be recomputed
here, so the check counts layers. A short sample is captured with the states of every layer, one row
per batch. These states are a ladder with L rungs. Three conditions must hold:

    top       the final norm maps rung L, but not rung L - 1, to the captured final state. Since
              the L rungs are in the order of the L layers, each rung's layer is then known
    finite    every value of every stream is finite
    nearest   each stream, captured together with all other streams and in full batches, is nearer
              to its own rung than to any other at nearly all positions

An offset of one layer, streams in another order, a buffer that a later layer has overwritten, and
rows of another request all fail. Differences between batches do not fail: a different expert
changes a state less than a layer does, except at a few positions.

    checks = check_engine(engine, rows, spec, ends.lm_head_VH, target_dir)   # or an OutriderError

Shapes: T tokens of a row, H hidden, L rungs.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from outrider.common.errors import OutriderError
from outrider.common.tolerance import Tolerance
from outrider.serving.engine import Engine
from outrider.speculators.checkpoints.architectures import FINAL_NORM_WEIGHT
from outrider.speculators.checkpoints.layout import read_layout
from outrider.speculators.checkpoints.tensors import CheckpointTensors
from outrider.speculators.features import FINAL_NORM, FeatureSpec, layer_index, layer_name

Row = tuple[str, Sequence[int], int]
"""(sequence id, token ids, completion start)"""

CHECKED_TOKENS = 1024
"""First tokens of each sequence that are checked; the vocabulary product runs on the CPU."""

POSITIONS_AT_A_TIME = 256
"""Bounds the float32 logits: 256 x 129280 x 4 bytes = 132 MB for R1."""

MAX_DIFFERENCE, MARGIN = 0.15, 0.05
"""Maximum 99th percentile of |log-probability rebuilt from the states - the engine's|, in nats, and
the margin over the same difference between two runs of the engine."""

MAX_DISAGREEMENT, DISAGREEMENT_MARGIN = 0.05, 0.02
"""The same for the share of positions whose most probable tokens differ."""


@dataclass(frozen=True)
class SelfCheck:
    """Differences between rebuilt and engine log-probabilities."""

    sequences: int
    positions: int
    p99_difference: float
    """99th percentile, in nats."""
    top1_agreement: float
    """Share of positions with the same most probable token."""
    control_p99_difference: float
    """99th percentile, in nats, between the engine's log-probabilities in two batchings."""
    control_top1_agreement: float
    """Share of positions with the same most probable token in both batchings."""

    def describe(self) -> str:
        """Formats the numbers as a sentence."""
        return (
            f"self-check on {self.sequences} sequences, {self.positions} positions:"
            " log-probabilities from the states differ from the engine's by less than"
            f" {self.p99_difference:.1e} nats at 99 %, same top token at {self.top1_agreement:.2%}."
            f" The engine differs from itself, in other batches, by"
            f" {self.control_p99_difference:.1e} nats at 99 %, same top token at"
            f" {self.control_top1_agreement:.2%}"
        )


def self_check(engine: Engine, rows: Sequence[Row], lm_head_VH: torch.Tensor) -> SelfCheck:
    """Compares the engine's states of the rows' first tokens with its log-probabilities."""
    prompts = [(row_id, token_ids[:CHECKED_TOKENS]) for row_id, token_ids, _ in rows]
    hidden = {row_id: states.hidden for (row_id, _), states in engine.prefill(prompts)}
    head = lm_head_VH.float()
    logged_once = engine.prompt_logprobs(prompts)
    # In other batches, in which kernels round differently: half of the rows at a time, the last row
    # first.
    backwards = prompts[::-1]
    half = (len(prompts) + 1) // 2
    parts = [part for part in (backwards[:half], backwards[half:]) if part]
    logged_again = [answer for part in parts for answer in engine.prompt_logprobs(part)]
    differences = []
    agreements = []
    control_differences = []
    control_agreements = []
    for (row_id, token_ids), logged, again in zip(
        prompts, logged_once, reversed(logged_again), strict=True
    ):
        rebuilt, top = rebuilt_logprobs(
            hidden.pop(row_id), torch.as_tensor(token_ids, dtype=torch.long), head
        )
        logprobs = torch.from_numpy(logged.logprobs)
        differences.append((rebuilt - logprobs).abs())
        agreements.append(top == torch.from_numpy(logged.top_tokens))
        control_differences.append((torch.from_numpy(again.logprobs) - logprobs).abs())
        control_agreements.append(torch.from_numpy(again.top_tokens == logged.top_tokens))
    difference_N = torch.cat(differences)
    control_difference_N = torch.cat(control_differences)
    return SelfCheck(
        sequences=len(rows),
        positions=len(difference_N),
        p99_difference=_p99(difference_N),
        top1_agreement=_share(agreements),
        control_p99_difference=_p99(control_difference_N),
        control_top1_agreement=_share(control_agreements),
    )


def rebuilt_logprobs(
    hidden_TH: torch.Tensor, token_ids: torch.Tensor, lm_head_VH: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns log-probabilities of the tokens after h_0 .. h_{T-2}, and top tokens."""
    logprobs = []
    tops = []
    for start in range(0, len(token_ids) - 1, POSITIONS_AT_A_TIME):
        following = token_ids[start + 1 : start + 1 + POSITIONS_AT_A_TIME]
        # The engine's head computes in bf16; the same rounding here halves the difference.
        logits = (
            (hidden_TH[start : start + len(following)].float() @ lm_head_VH.T)
            .to(hidden_TH.dtype)
            .float()
        )
        logprobs.append(logits.log_softmax(-1).gather(-1, following[:, None])[:, 0])
        tops.append(logits.argmax(-1))
    return torch.cat(logprobs), torch.cat(tops)


def require_self_check(check: SelfCheck) -> None:
    """Raises an `OutriderError` if the check is outside its tolerance."""
    difference = Tolerance(MAX_DIFFERENCE, check.control_p99_difference, MARGIN)
    disagreement = Tolerance(
        MAX_DISAGREEMENT, 1 - check.control_top1_agreement, DISAGREEMENT_MARGIN
    )
    # Written so that a NaN fails too.
    if (
        check.p99_difference <= difference.allowed
        and check.top1_agreement >= 1 - disagreement.allowed
    ):
        return
    raise OutriderError(
        f"{check.describe()}. Allowed are {difference.describe()} (99th percentile),"
        f" and another top token at a share of {disagreement.describe()}. Usual"
        " causes: states taken before the final norm instead of after it, or one position off (an"
        " unsupported vLLM release); lm_head and engine from different revisions or quantizations"
        " of the target; an engine that computes this model incorrectly on this machine"
    )


def _share(agreements: Sequence[torch.Tensor]) -> float:
    """Returns the share of the positions, over all sequences, that agree."""
    return torch.cat(list(agreements)).float().mean().item()


def _p99(values: torch.Tensor) -> float:
    # torch.quantile takes at most 16M values.
    return values.sort().values[int(0.99 * len(values))].item()


MAX_TOP_ERROR = 0.02
"""Maximum mean relative error of the final norm applied to the last rung. bf16 rounding adds at
most 0.004; for nano R1, the error is 0.002 (0.3 for the rung below)."""
MIN_NEAREST = 0.95
"""Minimum share of positions whose nearest rung is the stream's own (1.0 for nano R1)."""


@dataclass(frozen=True)
class LayerCheck:
    """Comparison of a sample's captured streams with the states of every layer."""

    layers: int
    """L, the number of layers of the target."""
    positions: int
    top_error: float
    """Mean relative difference between the normed last rung and the captured final state."""
    below_top_error: float
    """The same for the rung below: the error of states that are one layer off."""
    nearest: dict[str, float]
    """Share of positions whose nearest rung is the stream's own; 0 if a value is not finite."""

    def describe(self) -> str:
        """Formats the numbers as two sentences."""
        streams = ", ".join(f"{name} {share:.2%}" for name, share in self.nearest.items())
        return (
            f"layer check on {self.positions} positions: the final norm over the state after layer"
            f" {self.layers} differs from the captured one by {self.top_error:.1e}, one layer"
            f" earlier by {self.below_top_error:.1e}. Positions nearest to the stream's own layer:"
            f" {streams}"
        )


def norm_and_layers(target_dir: Path) -> tuple[Callable[[Tensor], Tensor], int]:
    """Reads the target's final norm ([T, H] to float32) and layer count."""
    layout = read_layout(target_dir)
    weight_H = CheckpointTensors(layout).read(FINAL_NORM_WEIGHT, torch.float32)
    eps = layout.config["rms_norm_eps"]

    def norm(state_TH: Tensor) -> Tensor:
        return rms_norm(state_TH.float(), weight_H.shape, weight_H, eps)

    return norm, layout.config["num_hidden_layers"]


def layer_check(
    engine: Engine,
    rows: Sequence[Row],
    spec: FeatureSpec,
    norm: Callable[[Tensor], Tensor],
    layers: int,
) -> LayerCheck:
    """Compares captured streams of `rows` with the states of all layers."""
    # 512 tokens of all 61 rungs of R1 take 450 MB.
    length = max(512 // len(rows), 1)
    prompts = [(row_id, token_ids) for row_id, token_ids, _ in rows]
    beginnings = [(row_id, token_ids[:length]) for row_id, token_ids in prompts]
    names = [stream.name for stream in spec.auxiliary]
    captured = {row_id: states.streams for (row_id, _), states in engine.prefill(prompts, names)}
    rungs = [layer_name(index) for index in range(1, layers + 1)]
    finals = []
    ladders = []
    taken = []
    # A limit of one token makes every row a separate batch.
    for (row_id, _), ladder in engine.prefill(beginnings, [FINAL_NORM, *rungs], 1):
        finals.append(ladder.hidden.float())
        ladders.append(torch.stack([ladder.streams[name] for name in rungs]))
        taken.append({name: state_TH[:length] for name, state_TH in captured[row_id].items()})
    final_TH = torch.cat(finals)
    ladder_LTH = torch.cat(ladders, dim=1)
    # The normed last rung must equal the captured state, and the one below must not: a stream that
    # is one layer off looks plausible otherwise.
    top_L = [_relative(norm(rung_TH), final_TH).mean().item() for rung_TH in ladder_LTH[-2:]]
    nearest = {}
    for name in names:
        # Over the whole captured rows, not only the compared beginnings.
        finite = all(bool(states[name].isfinite().all()) for states in captured.values())
        state_TH = torch.cat([states[name] for states in taken])
        nearest[name] = _nearest(state_TH, ladder_LTH, name) if finite else 0.0
    return LayerCheck(
        layers=layers,
        positions=len(final_TH),
        top_error=top_L[-1],
        below_top_error=top_L[0],
        nearest=nearest,
    )


def _nearest(state_TH: Tensor, ladder_LTH: Tensor, name: str) -> float:
    """Returns the share of positions nearer to their own rung than to any other."""
    rung = layer_index(name) - 1
    wide_TH = state_TH.float()
    error_LT = torch.stack([_relative(wide_TH, rung_TH.float()) for rung_TH in ladder_LTH])
    other_rungs_LT = torch.cat([error_LT[:rung], error_LT[rung + 1 :]])
    # False for NaN, and if two rungs are equal.
    return (error_LT[rung] < other_rungs_LT).all(0).float().mean().item()


def _relative(state_TH: Tensor, reference_TH: Tensor) -> Tensor:
    return (state_TH - reference_TH).norm(dim=-1) / reference_TH.norm(dim=-1)


def require_layer_check(check: LayerCheck) -> None:
    """Raises an `OutriderError` if a stream comes from the wrong layer."""
    # Written so that a NaN fails too.
    top = check.top_error <= MAX_TOP_ERROR and check.top_error < check.below_top_error / 2
    if top and all(share >= MIN_NEAREST for share in check.nearest.values()):
        return
    raise OutriderError(
        f"{check.describe()}. The final norm may differ by {MAX_TOP_ERROR}, and by half of its"
        " difference one layer earlier; every stream must be nearest to its own layer at"
        f" {MIN_NEAREST:.0%} of the positions. Usual causes: a value that is not finite; a vLLM"
        " release that counts layers differently or reuses a state's memory; engine and checkpoint"
        " from different revisions of the target"
    )


class EngineChecks(TypedDict, total=False):
    """Results of the checks, as written to the capture's summary."""

    self_check: dict[str, float]
    layer_check: dict[str, object]
    """Absent if only the final state is captured."""


def check_engine(
    engine: Engine, rows: Sequence[Row], spec: FeatureSpec, lm_head_VH: Tensor, target_dir: Path
) -> tuple[EngineChecks, str]:
    """Checks an engine's states on `rows`; returns the results and a summary in words.

    Raises:
        OutriderError: If a check failed.
    """
    of_states = self_check(engine, rows, lm_head_VH)
    require_self_check(of_states)
    checks: EngineChecks = {"self_check": asdict(of_states)}
    if not spec.auxiliary:
        return checks, of_states.describe()
    norm, layers = norm_and_layers(target_dir)
    of_layers = layer_check(engine=engine, rows=rows, spec=spec, norm=norm, layers=layers)
    require_layer_check(of_layers)
    checks["layer_check"] = asdict(of_layers)
    return checks, f"{of_states.describe()}\n{of_layers.describe()}"
