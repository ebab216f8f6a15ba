"""Draft parity: compares the unroll's drafts with the engine's at every depth.

The engine answers prompts greedily with a speculator, and its proposals are recorded with the
drafter's log-probability of each draft. The same states go through the unroll in float32. Each
chain is fed the engine's own drafts, so a difference at one depth does not carry over to the next.

    sums = engine_parity(target, engine, base_dir, k=4, prompts=prompts, parity=parity)
    parity_failure(sums, parity)            # speculators/parity.py: None if they agree

Shapes: T tokens, X input values of the drafter per token, D draft vocabulary, K depths.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from outrider.common.child_process import in_child
from outrider.common.errors import OutriderError
from outrider.eval.replay.replay import ReplayModel, load_replay_model
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import Engine, open_engine
from outrider.serving.speculator import Drafting, Speculator
from outrider.speculators.features import FeatureSpec
from outrider.speculators.parity import ParityConfig, parity_sums
from outrider.speculators.unroll import Slots


@dataclass(frozen=True)
class RecordedStep:
    """A recorded step of the engine."""

    request: int
    anchor: int
    """Index of the last token that the target had read"""
    token_ids: list[int]
    """Tokens of prompt and response up to the last draft"""
    drafts: list[int]
    logprobs: list[float]
    """The drafter's log-probability of each draft"""


@dataclass(frozen=True)
class Recording:
    """The engine's steps while it answered prompts greedily."""

    steps: list[RecordedStep]
    inputs: list[torch.Tensor]
    """[T, X] of each response with its prompt: the states that the drafter reads"""


def engine_parity(
    target: TargetConfig,
    engine_config: EngineConfig,
    speculator_dir: Path,
    *,
    k: int,
    prompts: Sequence[Sequence[int]],
    parity: ParityConfig,
    dtype: str = "float32",
) -> list[list[float]]:
    """Runs `draft_parity` on steps recorded in an eager engine.

    The engine exits before the unroll starts, so that both fit on a GPU. The unroll runs in a child
    process, whose exit frees its memory.
    """
    from outrider.serving.vllm_hooks.draft_recorder import DRAFT_EXTENSION

    eager = engine_config.model_copy(update={"mode": "eager"})
    speculator = Speculator.from_name(speculator_dir)
    target_dir = target.directory()
    spec = speculator.features(target_dir)
    drafting = Drafting(speculator, k)
    with open_engine(target, eager, drafting, extension=DRAFT_EXTENSION) as engine:
        recording = record(engine, spec, prompts, parity.max_tokens)
    return in_child(
        draft_parity,
        recording=recording,
        speculator_dir=speculator_dir,
        target_dir=target_dir,
        k=k,
        parity=parity,
        dtype=dtype,
    )


def record(
    engine: Engine, spec: FeatureSpec, prompts: Sequence[Sequence[int]], max_tokens: int
) -> Recording:
    """Records the drafter's proposals while the engine answers, and the answers' states.

    `spec` names the states that the drafter reads. The engine must have the draft extension.
    """
    from vllm import SamplingParams
    from vllm.inputs import TokensPrompt

    greedy = SamplingParams(temperature=0.0, max_tokens=max_tokens, detokenize=False)
    requests = [TokensPrompt(prompt_token_ids=list(prompt)) for prompt in prompts]
    engine.llm.collective_rpc("drafts_start")
    outputs = engine.llm.generate(requests, greedy, use_tqdm=False)
    of_ranks = engine.llm.collective_rpc("drafts_stop")
    # Only the last pipeline stage has the drafter, and its tensor-parallel ranks draft the same.
    records = next(records for records in of_ranks if records is not None)
    rows = [
        [*prompt, *output.outputs[0].token_ids]
        for prompt, output in zip(prompts, outputs, strict=True)
    ]
    request_of = {output.request_id: index for index, output in enumerate(outputs)}
    steps = []
    for proposal in records:
        request = request_of[proposal["request_id"]]
        anchor = proposal["anchor"]
        row = rows[request]
        # Skips proposals made before the prompt is fully read or after the last token.
        inside = len(prompts[request]) <= anchor + 1 < len(row)
        if inside and row[anchor + 1] == proposal["next_token"]:
            tokens = [*row[: anchor + 2], *proposal["drafts"]]
            steps.append(
                RecordedStep(
                    request=request,
                    anchor=anchor,
                    token_ids=tokens,
                    drafts=proposal["drafts"],
                    logprobs=proposal["logprobs"],
                )
            )
    named_rows = [(str(index), row) for index, row in enumerate(rows)]
    inputs = [spec.inputs(states) for _, states in engine.prefill(named_rows, spec.names)]
    return Recording(steps, inputs)


def draft_parity(
    recording: Recording,
    speculator_dir: Path,
    target_dir: Path,
    *,
    k: int,
    parity: ParityConfig,
    dtype: str = "float32",
) -> list[list[float]]:
    """Compares drafts at `parity.anchors` random steps; returns sums [K, 4] of `parity_sums`."""
    if not recording.steps:
        raise OutriderError(
            "draft parity: the engine made no drafts; do the responses have only one token?"
        )
    model = load_replay_model(speculator_dir, target_dir, dtype)
    head = model.drafter.head(model.ends)
    sums_K4 = torch.zeros(k, 4, dtype=torch.float64)
    count = min(parity.anchors, len(recording.steps))
    # The sampled steps are the same on every call, so a repeated check gives the same sums.
    for step in random.Random(0).sample(recording.steps, count):
        log_q_KD = _log_probabilities(model, step, recording.inputs[step.request], k)
        draft_K, _ = head.from_target(torch.tensor(step.drafts).to(model.device))
        logprob_K = torch.tensor(step.logprobs)
        for depth in range(k):
            one = slice(depth, depth + 1)
            sums_K4[depth] += parity_sums(log_q_KD[one], draft_K.cpu()[one], logprob_K[one], parity)
    if not sums_K4.isfinite().all():
        raise OutriderError(
            f"draft parity: log-probabilities of the drafts of {speculator_dir} are not finite;"
            " are its weights intact?"
        )
    return sums_K4.tolist()


def _log_probabilities(
    model: ReplayModel, step: RecordedStep, inputs_TX: torch.Tensor, k: int
) -> torch.Tensor:
    """log q [K, D] of all depths at the step's anchor, on CPU."""
    token_BT = torch.tensor(step.token_ids)[None]
    width = token_BT.shape[1]
    known = step.anchor + 1
    position_BT = torch.arange(width)[None]
    inputs_BTX = torch.zeros(1, width, model.spec.width, dtype=model.ends.lm_head_VH.dtype)
    # The target had read no token after the anchor, so no state after it may have an effect.
    inputs_BTX[0, :known] = inputs_TX[:known]
    slots = Slots(
        token_ids_BT=token_BT.to(model.device),
        inputs_BTX=inputs_BTX.to(model.device),
        sequence_BT=torch.zeros_like(token_BT).to(model.device),
        position_BT=position_BT.to(model.device),
        anchor_BT=(position_BT == step.anchor).to(model.device),
    )
    with torch.no_grad():
        _, states = model.drafter.unroll(model.ends, slots, k)
        logits_KD = model.drafter.head(model.ends).logits(torch.cat(states))
    return logits_KD.float().log_softmax(-1).cpu()
