"""Draft parity: compares the drafts of the unroll with those of the engine, at every depth.

The engine answers prompts greedily with a speculator. Its proposals are recorded, with the
drafter's log-probability of each draft. The same states, captured from the same tokens, go through
the unroll in float32. Each chain is fed the engine's own drafts, so a difference at one depth does
not carry over to the next. Only bf16 against float32 remains: a token may change where two are
nearly as likely.

Kernels whose result depends on the batch draft other tokens for the same text. So the engine
answers twice, the second time one request at a time, and what it shows against itself is allowed
(common/tolerance.py). Compared are the drafts of steps with the same tokens before them, and of
these every depth up to the first that differs: what follows was drafted from another token.

    found = engine_parity(target, engine, {"base": base_dir}, 4, prompts, parity)["base"]
    complaint(found, parity)            # None where they agree

Shapes: B anchors of a batch, T tokens, H hidden, D draft vocabulary, K depths.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.common.child_process import in_child
from outrider.common.errors import OutriderError
from outrider.common.tolerance import Tolerance
from outrider.eval.replay.replay import Replayed, load_replayed
from outrider.eval.results.parts import Part
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.speculator import Drafting, Speculator
from outrider.speculators.config import ParityConfig
from outrider.speculators.features import FeatureSpec

if TYPE_CHECKING:
    import torch

    from outrider.serving.engine import Engine


class ParityControl(Part):
    """Drafts of the engine and its own for the same text, one request at a time."""

    drafts: int
    """Number of drafts compared"""
    missing: float
    """Share of them that differ without a near tie"""
    difference: float
    """Mean absolute difference of log-probabilities of equal drafts, nats"""


class Parity(Part):
    """Drafts of trainer and engine, over all positions."""

    steps: int
    """Number of steps compared"""
    agreement: float
    """Share of equal tokens"""
    near_ties: float
    """Share of tokens that differ within 0.25 nats"""
    difference: float
    """Mean absolute difference of log-probabilities, nats"""
    per_depth: list[float]
    """Share of equal tokens by position"""
    control: ParityControl | None = None
    """The engine against itself; null where no text was the same"""

    @property
    def drafts(self) -> int:
        """Number of drafts compared."""
        return self.steps * len(self.per_depth)


@dataclass(frozen=True)
class Step:
    """An engine's step."""

    request: int
    anchor: int
    """The last token that the target had read"""
    token_ids: list[int]
    """Up to the last draft"""
    drafts: list[int]
    logprobs: list[float]
    """The drafter's, of each draft"""

    @property
    def text(self) -> tuple[int, ...]:
        """The request, and all tokens before the drafts."""
        return self.request, *self.token_ids[: self.anchor + 2]


ANCHORS_A_BATCH = 16
TOKENS_A_BATCH = 8192
"""Each anchor carries its prompt: 16 of 32,768 tokens would not fit next to the target's ends."""

CAUSES = (
    "usual causes: a state fed back before the final norm instead of after it, tokens or positions"
    " off by one, weights that were not loaded or belong to another checkpoint, another chat"
    " template or tokenizer than the target's, a quantization that only one side has"
)


@dataclass(frozen=True)
class Recording:
    """The engine's steps over its own greedy responses."""

    steps: list[Step]
    inputs: list["torch.Tensor"]
    """[T, X] of each response with its prompt: the states that the drafter reads"""
    again: list[Step] = field(default_factory=list)
    """`steps` of the same prompts, one request at a time"""


def engine_parity(
    target: TargetConfig,
    engine_config: EngineConfig,
    speculators: Mapping[str, Path],
    k: int,
    prompts: Sequence[Sequence[int]],
    parity: ParityConfig,
    dtype: str = "float32",
) -> dict[str, Parity]:
    """`draft_parity` of each speculator, recorded in eager engines.

    Speculators that can be swapped take turns in one engine. The engines have ended when the
    unroll starts, so that both fit on a GPU; the unroll's memory ends with its process.
    """
    from outrider.serving.engine import open_engine
    from outrider.serving.vllm_hooks.draft_recorder import DRAFT_EXTENSION

    eager = engine_config.model_copy(update={"mode": "eager"})
    recordings: dict[str, Recording] = {}
    for group in by_engine(speculators):
        first = next(iter(group.values()))
        drafting = Drafting(Speculator.named(first), k)
        with open_engine(target, eager, drafting, extension=DRAFT_EXTENSION) as engine:
            recordings |= record_each(engine, group, target.directory(), prompts, parity)
    return {
        name: in_child(
            draft_parity, recordings[name], directory, target.directory(), k, parity, dtype
        )
        for name, directory in speculators.items()
    }


def by_engine(speculators: Mapping[str, Path]) -> list[dict[str, Path]]:
    """The speculators in groups, each of which one engine serves in turn."""
    groups: list[dict[str, Path]] = []
    for name, directory in speculators.items():
        own = Speculator.named(directory)
        for group in groups:
            if Speculator.named(next(iter(group.values()))).swaps_with(own):
                group[name] = directory
                break
        else:
            groups.append({name: directory})
    return groups


def record_each(
    engine: "Engine",
    speculators: Mapping[str, Path],
    target_dir: Path,
    prompts: Sequence[Sequence[int]],
    parity: ParityConfig,
) -> dict[str, Recording]:
    """A recording of each speculator, in an engine with a speculator and the draft extension."""
    recordings = {}
    for name, directory in speculators.items():
        engine.swap(directory)
        spec = Speculator.named(directory).features(target_dir)
        recordings[name] = record(engine, spec, prompts, parity.max_tokens)
    return recordings


def record(
    engine: "Engine", spec: FeatureSpec, prompts: Sequence[Sequence[int]], max_tokens: int
) -> Recording:
    """Records the drafter's proposals while the engine answers, and the states of the answers.

    `spec` are the states that the drafter reads.
    """
    import torch

    rows, steps = _answers(engine, prompts, max_tokens, at_once=len(prompts))
    named = [(str(index), row) for index, row in enumerate(rows)]
    inputs = [
        torch.cat([states[name] for name in spec.names], dim=-1)
        for _, states, _ in engine.prefill(named, spec.names)
    ]
    _, again = _answers(engine, prompts, max_tokens, at_once=1)
    return Recording(steps, inputs, again)


def _answers(
    engine: "Engine", prompts: Sequence[Sequence[int]], max_tokens: int, at_once: int
) -> tuple[list[list[int]], list[Step]]:
    """The prompts with their greedy answers, and the steps, of so many requests at once."""
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    from outrider.serving.vllm_hooks.draft_recorder import recorded

    greedy = SamplingParams(temperature=0.0, max_tokens=max_tokens, detokenize=False)
    wanted = [TokensPrompt(prompt_token_ids=list(prompt)) for prompt in prompts]
    engine.llm.collective_rpc("drafts_start")
    outputs = []
    for begin in range(0, len(wanted), at_once):
        batch = wanted[begin : begin + at_once]
        outputs += engine.llm.generate(batch, greedy, use_tqdm=False)
    records = recorded(engine.llm.collective_rpc("drafts_stop"))
    rows = [
        [*prompt, *output.outputs[0].token_ids]
        for prompt, output in zip(prompts, outputs, strict=True)
    ]
    request_of = {output.request_id: index for index, output in enumerate(outputs)}
    steps = []
    for proposal in records:
        request, anchor = request_of[proposal["request_id"]], proposal["anchor"]
        row = rows[request]
        # Unfinished chunks of a prompt propose too, and so does a step after the last token.
        if (
            len(prompts[request]) <= anchor + 1 < len(row)
            and row[anchor + 1] == proposal["next_token"]
        ):
            tokens = [*row[: anchor + 2], *proposal["drafts"]]
            steps.append(Step(request, anchor, tokens, proposal["drafts"], proposal["logprobs"]))
    return rows, steps


def draft_parity(
    recording: Recording,
    speculator_dir: Path,
    target_dir: Path,
    k: int,
    parity: ParityConfig,
    dtype: str = "float32",
) -> Parity:
    """Compares the unroll's drafts with the recorded ones.

    At most `parity.anchors` steps are compared, drawn by seed.
    """
    import torch

    if not recording.steps:
        raise OutriderError(
            "draft parity: the engine drafted for no token; are the prompts' answers a single"
            " token?"
        )
    count = min(parity.anchors, len(recording.steps))
    steps = random.Random(0).sample(recording.steps, count)
    steps.sort(key=lambda step: step.anchor)  # rows of like length share a batch
    again = {step.text: step for step in recording.again}
    model = load_replayed(speculator_dir, target_dir, dtype)
    head = model.drafter.head(model.ends)
    sums_K3 = torch.zeros(k, 3, dtype=torch.float64)  # equal, near ties, nats
    twice: list[tuple[bool, bool, float]] = []
    for batch in batches(steps):
        for depth, log_q_BD in enumerate(_log_probabilities(model, batch, recording.inputs, k)):
            engine_logprob_B = torch.tensor([step.logprobs[depth] for step in batch])
            engine_B = torch.tensor([step.drafts[depth] for step in batch])
            draft_B, _ = head.from_target(engine_B.to(model.device))
            logprob_B = log_q_BD.gather(1, draft_B.cpu()[:, None])[:, 0]
            gap_B = log_q_BD.max(-1).values - logprob_B
            near_B = (gap_B > 0) & (gap_B <= parity.near_tie_nats)
            difference_B = (logprob_B - engine_logprob_B).abs()
            columns_B3 = torch.stack([gap_B == 0, near_B, difference_B], dim=1)
            sums_K3[depth] += columns_B3.double().sum(dim=0)
            for row, step in enumerate(batch):
                other = again.get(step.text)
                if other is not None and other.drafts[:depth] == step.drafts[:depth]:
                    other_id = torch.tensor([other.drafts[depth]], device=model.device)
                    other_logprob = log_q_BD[row, head.from_target(other_id)[0].cpu()]
                    gap = float((logprob_B[row] - other_logprob).abs())
                    equal = step.drafts[depth] == other.drafts[depth]
                    nats = abs(step.logprobs[depth] - other.logprobs[depth])
                    twice.append((equal, gap > parity.near_tie_nats, nats))
    if not sums_K3.isfinite().all():
        raise OutriderError(
            f"draft parity: log-probabilities of the drafts of {speculator_dir} are not finite; "
            f"{CAUSES}"
        )
    names = ("agreement", "near_ties", "difference")
    return Parity(
        steps=count,
        **dict(zip(names, (sums_K3.mean(dim=0) / count).tolist(), strict=True)),
        per_depth=(sums_K3[:, 0] / count).tolist(),
        control=_control(twice),
    )


def _control(twice: Sequence[tuple[bool, bool, float]]) -> ParityControl | None:
    """Of drafts made twice: whether equal, whether not even a near tie, and nats apart."""
    if not twice:
        return None
    equal = [nats for same, _, nats in twice if same]
    return ParityControl(
        drafts=len(twice),
        missing=sum(missing for _, missing, _ in twice) / len(twice),
        difference=sum(equal) / max(len(equal), 1),
    )


def batches(steps: Sequence[Step]) -> Iterator[list[Step]]:
    """The steps in order, as many at once as ANCHORS_A_BATCH and TOKENS_A_BATCH allow.

    All rows of a batch are as long as its longest.
    """
    batch: list[Step] = []
    longest = 0
    for step in steps:
        longest = max(longest, len(step.token_ids))
        full = len(batch) == ANCHORS_A_BATCH or (len(batch) + 1) * longest > TOKENS_A_BATCH
        if batch and full:
            yield batch
            batch, longest = [], len(step.token_ids)
        batch.append(step)
    if batch:
        yield batch


def _log_probabilities(
    model: Replayed,
    steps: Sequence[Step],
    inputs: Sequence["torch.Tensor"],
    k: int,
) -> list["torch.Tensor"]:
    """log q [B, D] of every depth at the anchors of a batch of steps, on the CPU."""
    import torch

    width = max(len(step.token_ids) for step in steps)
    dtype = model.ends.lm_head_VH.dtype
    token_BT = torch.zeros(len(steps), width, dtype=torch.long)
    sequence_BT = torch.full((len(steps), width), -1)
    anchor_BT = torch.zeros(len(steps), width, dtype=torch.bool)
    inputs_BTX = torch.zeros(len(steps), width, model.spec.width)
    for row, step in enumerate(steps):
        tokens, anchor = step.token_ids, step.anchor
        token_BT[row, : len(tokens)] = torch.tensor(tokens)
        sequence_BT[row, : len(tokens)] = row
        anchor_BT[row, anchor] = True
        inputs_BTX[row, : anchor + 1] = inputs[step.request][: anchor + 1].float()
    position_BT = torch.arange(width).expand(len(steps), -1)
    tensors = (token_BT, inputs_BTX.to(dtype), sequence_BT, position_BT, anchor_BT)
    with torch.no_grad():
        token_BT, inputs_BTX, sequence_BT, position_BT, anchor_BT = (
            tensor.to(model.device) for tensor in tensors
        )
        _, states = model.drafter.unroll(
            model.ends, token_BT, inputs_BTX, sequence_BT, position_BT, anchor_BT, k
        )
        head = model.drafter.head(model.ends)
        return [head.logits(state).float().log_softmax(-1).cpu() for state in states]


REFUSED = 0.05
"""Largest probability that an engine within the limit is refused."""


def most_missing(drafts: int, share: float) -> int:
    """How many drafts may be neither equal nor near ties, if a `share` of all may be.

    A binomial bound: at a true share within the limit, more are found in at most `REFUSED` of the
    cases, however many drafts are compared. Drafts of a sequence are alike: where they miss in
    pairs this holds up to 0.8 of the limit.
    """
    from scipy.stats import binom

    return int(binom.isf(REFUSED, drafts, share))


def tolerances(found: Parity, parity: ParityConfig) -> tuple[Tolerance, Tolerance]:
    """Of the share of drafts that are neither equal nor near ties, and of the nats."""
    control = found.control or ParityControl(drafts=0, missing=0.0, difference=0.0)
    return (
        Tolerance(1 - parity.min_agreement, control.missing, parity.agreement_margin),
        Tolerance(parity.max_difference, control.difference, parity.difference_margin),
    )


def complaint(found: Parity, parity: ParityConfig) -> str | None:
    """Why parity fails, in one sentence; None where it holds."""
    missing, difference = tolerances(found, parity)
    most = most_missing(found.drafts, missing.allowed)
    if (  # sums of shares are rounded
        found.drafts * (1 - found.agreement - found.near_ties) <= most + 0.5
        and found.difference <= difference.allowed
    ):
        return None
    depths = ", ".join(
        f"{share:.1%} at depth {s}" for s, share in enumerate(found.per_depth, start=1)
    )
    return (
        f"the trainer's unroll and the engine agree on {found.agreement:.2%} of"
        f" {found.steps} x {len(found.per_depth)} draft tokens ({depths};"
        f" {found.near_ties:.2%} more within {parity.near_tie_nats:g} nats), and on their"
        f" log-probabilities to {found.difference:.3f} nats on average; {most} others may be"
        f" found at a true share of {missing.describe()}, and the"
        f" difference may be {difference.describe()}; {CAUSES}"
    )
