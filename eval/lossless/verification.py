"""Verification pass: is speculation lossless, and does exact replay predict the engine?

    verification = verify(context, k, requests.verification, outputs)

The responses and the engine's counters (eval/bench/outputs.py) show whether greedy outputs changed,
whether sampled tokens still follow the target's distribution, whether as many tasks are solved, and
whether exact replay of the engine's outputs predicts its counted steps. If trainer and engine draft
differently, the steps differ. Every engine mode is verified, because kernels differ.

Greedy responses expose a sampler that accepts too much: accepting 5 % of the drafts that should be
rejected changes most of 24 responses of 160 tokens. If only sampled requests are affected, 24
responses expose only gross faults.
"""

import functools
import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from outrider.common.child_process import in_child
from outrider.common.errors import OutriderError
from outrider.data.features.feature_store import FeatureStore
from outrider.data.tokenize.tokens import load_tokenizer
from outrider.eval.bench.outputs import REGIMES, Outputs, RecordedOutputs
from outrider.eval.bench.prompts import Prompt
from outrider.eval.config import EvalConfig
from outrider.eval.context import EvaluationContext, Row
from outrider.eval.lossless.equal_text import compare_greedy, excess, same_tokens, tail_share
from outrider.eval.lossless.task_accuracy import raised_at, response_text, task_accuracy, task_of
from outrider.eval.replay.replay import replay
from outrider.eval.results.parts import DRAFTERS, VARIANTS, Drafters, Variant, Variants
from outrider.eval.results.sections import (
    EngineFindings,
    GreedyComparison,
    ReplayAgainstEngine,
    Task,
    Verification,
)
from outrider.serving.config import TargetConfig
from outrider.speculators.checkpoints.target_ends import load_target_ends

POSITIONS_AT_A_TIME = 256
"""Bounds the memory of float32 logits: 132 MB for R1, instead of 4 GB for a whole 8k response."""


def verify(
    context: EvaluationContext,
    k: Drafters[int],
    prompts: Sequence[Prompt],
    outputs: Mapping[str, Outputs],
) -> Verification:
    """Runs every check in every engine mode; measurements are cached."""
    return Verification(
        modes={
            mode: context.cached_measurement(
                f"verification_{mode}",
                EngineFindings,
                functools.partial(
                    capture_and_verify, context, k=k, prompts=prompts, outputs=answers
                ),
            )
            for mode, answers in outputs.items()
        },
        task=judge_tasks(
            outputs=[*outputs.values()],
            prompts=prompts,
            target=context.target,
            settings=context.settings,
            quoting=context.show_samples,
        ),
    )


def capture_and_verify(
    context: EvaluationContext, k: Drafters[int], prompts: Sequence[Prompt], outputs: Outputs
) -> EngineFindings:
    """Captures the states of every response in an engine, then runs `engine_findings`."""
    # One eager engine for all variants, so that differences between them cannot come from its
    # kernels.
    context.say("verification: the target scores all responses")
    with context.capture_states(lambda _: captured_rows(outputs, prompts)) as store:
        context.say("verification: comparing the responses of base, custom and none")
        return engine_findings(context=context, k=k, prompts=prompts, outputs=outputs, store=store)


def engine_findings(
    context: EvaluationContext,
    k: Drafters[int],
    prompts: Sequence[Prompt],
    outputs: Outputs,
    store: FeatureStore,
) -> EngineFindings:
    """Checks the responses, using their captured states."""
    scores = TargetScores(context.target.directory(), store, context.settings.replay_dtype)
    near_tie_nats = context.settings.gate.near_tie_nats
    temperature = outputs.samplings["sampled"].temperature

    def against_none(recorded: RecordedOutputs) -> GreedyComparison:
        """Compares responses with those to the same prompts without speculation."""
        without = outputs.greedy.none.token_ids[: len(recorded.token_ids)]

        def gap(response: int, index: int, token: int, speculated: int) -> float:
            return scores.gap(
                prompts[response],
                without[response],
                index=index,
                token=token,
                alternative=speculated,
            )

        return compare_greedy(without, recorded.token_ids, gap, near_tie_nats)

    def tail(recorded: RecordedOutputs) -> float:
        return tail_share(
            [
                scores.logprobs(prompt, ids, temperature)
                for prompt, ids in zip(prompts, recorded.token_ids, strict=True)
            ]
        )

    greedy = {drafter: against_none(outputs.greedy.of(drafter)) for drafter in DRAFTERS}
    control = against_none(outputs.control)
    tails = {variant: tail(outputs.sampled.of(variant)) for variant in VARIANTS}
    counted = {drafter: outputs.greedy.of(drafter).acceptance_length for drafter in DRAFTERS}
    steps = None
    if not context.no_replay:
        steps = replay_against_engine(
            context=context, k=k, prompts=prompts, outputs=outputs, store=store
        )
    return EngineFindings(
        greedy=Drafters[GreedyComparison](**greedy),
        control=control,
        excess=excess(greedy["custom"], control),
        greedy_acceptance_length=Drafters[float | None](**counted),
        tail_share=Variants[float](**tails),
        same_text=same_tokens(outputs.sampled.none.token_ids, outputs.sampled.custom.token_ids),
        replay_vs_engine=steps,
    )


def judge_tasks(
    outputs: Sequence[Outputs],
    prompts: Sequence[Prompt],
    target: TargetConfig,
    settings: EvalConfig,
    quoting: bool = False,
) -> Task | None:
    """Task accuracy over all responses; None without a task or known answers.

    Covers greedy and sampled responses of all modes. Prompts without a known answer are left out,
    and so are those on which the check raises.

    Raises:
        OutriderError: If the check raises and no prompt is judged.
    """
    task = task_of(settings)
    if task is None:
        return None
    tokenizer = load_tokenizer(target.directory())
    errors: list[str] = []

    def mark(prompt: Prompt, ids: Sequence[int]) -> bool | None:
        try:
            return task(prompt.text, response_text(tokenizer, ids))
        except Exception as error:  # of the recipe's own function, so any exception
            errors.append(raised_at(error, quoting))
            return None

    solved, sessions = _solved(outputs, prompts, mark)
    if errors and not sessions:
        raise OutriderError(
            f"eval.task = {settings.task!r} raised on all responses, first {errors[0]}; correct it"
            " or set eval.task: null, and rerun the command: measurements are kept"
        )
    if not sessions:
        return None
    accuracy = task_accuracy(solved, sessions)
    first = errors[0] if errors else None
    return accuracy.model_copy(update={"errors": len(errors), "first_error": first})


def _solved(
    outputs: Sequence[Outputs],
    prompts: Sequence[Prompt],
    mark: Callable[[Prompt, Sequence[int]], bool | None],
) -> tuple[dict[Variant, list[bool]], list[str]]:
    """Which responses of each variant are solved, and the session of each."""
    solved: dict[Variant, list[bool]] = {variant: [] for variant in VARIANTS}
    sessions: list[str] = []
    for answers, regime in itertools.product(outputs, REGIMES):
        for index, prompt in enumerate(prompts):
            responses = answers.of(regime)
            marks = {
                variant: mark(prompt, responses.of(variant).token_ids[index])
                for variant in VARIANTS
            }
            # The comparison is paired: a prompt counts for all variants or for none.
            if None in marks.values():
                continue
            sessions.append(prompt.session)
            for variant, is_solved in marks.items():
                solved[variant].append(bool(is_solved))
    return solved, sessions


def row_id(prompt: Prompt, completion: Sequence[int]) -> str:
    """Id of a captured response; equal responses to a prompt share it."""
    # -1 is no token: it keeps prompt and response apart.
    ids = np.asarray([*prompt.token_ids, -1, *completion], np.int32)
    return hashlib.sha256(ids.tobytes()).hexdigest()


def captured_rows(outputs: Outputs, prompts: Sequence[Prompt]) -> list[Row]:
    """Rows to capture: every distinct response with its prompt."""
    rows: dict[str, Row] = {}
    for regime, variant in itertools.product(REGIMES, VARIANTS):
        responses = outputs.of(regime).of(variant).token_ids
        for prompt, ids in zip(prompts, responses, strict=True):
            name = row_id(prompt, ids)
            rows[name] = (name, [*prompt.token_ids, *ids], len(prompt.token_ids))
    return list(rows.values())


class TargetScores:
    """The target's log-probabilities from captured states, on the GPU if available."""

    def __init__(self, target_dir: Path, store: FeatureStore, dtype: str) -> None:
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._dtype: torch.dtype = getattr(torch, dtype)
        self.store = store
        self._head_VH = load_target_ends(target_dir, self._dtype).lm_head_VH.to(self._device)

    def logprobs(
        self, prompt: Prompt, completion: Sequence[int], temperature: float
    ) -> NDArray[np.float64]:
        """Log-probability of each token of the completion, before top-p filtering."""
        features = self.store.read(row_id(prompt, completion))
        start = features.completion_start
        token_T = features.token_ids[start:].long().to(self._device)
        parts = []
        for hidden_NH, token_N in zip(
            # The state at t - 1 predicts the token at t.
            features.hidden[start - 1 : -1].split(POSITIONS_AT_A_TIME),
            token_T.split(POSITIONS_AT_A_TIME),
            strict=True,
        ):
            # The customer's sampling may be greedy, with temperature 0.
            scaled_NV = self._logits(hidden_NH).div_(temperature or 1.0)
            token_logit_N = scaled_NV.gather(-1, token_N[:, None])[:, 0]
            parts.append((token_logit_N - scaled_NV.logsumexp(-1)).cpu())
        return torch.cat(parts).numpy()

    def gap(
        self, prompt: Prompt, completion: Sequence[int], *, index: int, token: int, alternative: int
    ) -> float:
        """Distance in nats between the log-probabilities of two tokens at `index`."""
        features = self.store.read(row_id(prompt, completion))
        logits_V = self._logits(features.hidden[features.completion_start + index - 1])
        return abs(float(logits_V[token] - logits_V[alternative]))

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden.to(device=self._device, dtype=self._dtype), self._head_VH).float()


def replay_against_engine(
    context: EvaluationContext,
    k: Drafters[int],
    prompts: Sequence[Prompt],
    outputs: Outputs,
    store: FeatureStore,
) -> ReplayAgainstEngine:
    """Compares replay's predicted steps with the engine's counts for the same responses."""
    differences = {}
    for drafter, speculator in context.speculators.items():
        context.say(f"verification: exact replay of {drafter} against the engine's counts")
        predicted = counted = 0.0
        for regime in REGIMES:
            recorded = outputs.of(regime).of(drafter)
            rows = [
                {"sequence_id": row_id(prompt, ids), "session": prompt.session}
                for prompt, ids in zip(prompts, recorded.token_ids, strict=True)
            ]
            sums = in_child(
                replay,
                speculator=speculator.replay_argument(context.runner(speculator)),
                target_dir=context.target.directory(),
                feature_store=store,
                rows=rows,
                depth=k.of(drafter),
                draft_sample_method=context.draft_sample_method,
                sampling=outputs.samplings[regime],
                dtype=context.settings.replay_dtype,
            )
            predicted += float(sums.steps_RK[:, k.of(drafter) - 1].sum())
            counted += speculator.steps(asdict(recorded.counters), len(prompts))
        # Both sums are over the same responses, so the sampling of responses cancels.
        differences[drafter] = predicted / counted - 1
    return ReplayAgainstEngine(**differences, control=_steps_again(outputs))


def _steps_again(outputs: Outputs) -> float:
    """Relative change in custom's steps under different batching, where responses are equal."""
    first = outputs.greedy.custom
    again = outputs.repeated
    # A response that differs has other steps for that reason alone.
    equal = [i for i, ids in enumerate(again.token_ids) if ids == first.token_ids[i]]
    before = sum(first.counted[i].drafts for i in equal)
    after = sum(again.counted[i].drafts for i in equal)
    return abs(after / before - 1) if before else 0.0
