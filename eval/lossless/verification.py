"""The verification pass: the same held-out prompts through none, base and custom, greedily and as the customer samples, token for token.

From the responses and the engine's counters around them come four answers: whether speculation changed greedy outputs, whether sampled
tokens are still the target's, whether tasks are solved as often, and whether exact replay predicts the steps that the engine counted.
For the last one the target's states of the engine's own outputs are captured, so that replay reads exactly what was served; the engine
that captures them also drafts, and its drafts are compared with the trainer's (parity.py).

    outputs = collect(fleet, prompts, sampling, max_tokens=400, concurrency=8, say=print)
    findings = examine(outputs, ...)
"""

import hashlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from outrider.eval.bench.prompts import Prompt
from outrider.eval.bench.server_pool import Fleet
from outrider.eval.config import EvalConfig
from outrider.eval.lossless.greedy_match import compare_greedy, task_accuracy, text_statistics
from outrider.eval.lossless.task_accuracy import task_of
from outrider.eval.replay.draft_parity import compare_each, record_each
from outrider.eval.replay.replay import replay
from outrider.serving.client import Sampling, complete
from outrider.serving.config import ServingConfig, TargetConfig

REGIMES = ("greedy", "sampled")


def collect(
    fleet: Fleet,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    max_tokens: int,
    concurrency: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Per regime and variant the responses' token ids and what the engine counted meanwhile; `say` hears of each pass."""
    samplings = {"greedy": Sampling(temperature=0.0, top_p=1.0), "sampled": sampling}
    outputs: dict[str, Any] = {
        "samplings": {name: asdict(value) for name, value in samplings.items()}
    }
    for regime in REGIMES:
        outputs[regime] = dict.fromkeys(fleet.variants)
    for group in fleet.groups:
        for regime in REGIMES:
            for variant in group:
                say(f"verification, {regime}, {variant}")
                server = fleet.server(variant)
                before = server.counters()
                completions = complete(
                    server.url,
                    server.model_name,
                    [prompt.token_ids for prompt in prompts],
                    samplings[regime],
                    max_tokens,
                    concurrency=concurrency,
                )
                outputs[regime][variant] = {
                    "token_ids": [completion.token_ids for completion in completions],
                    "counters": asdict(server.counters() - before),
                }
    return outputs


def examine(
    outputs: Mapping[str, Any],
    prompts: Sequence[Prompt],
    *,
    target: TargetConfig,
    serving: ServingConfig,
    speculators: Mapping[str, Path],
    k: int,
    depth: int,
    evaluation: EvalConfig,
    scratch: Path,
) -> dict[str, Any]:
    """Captures the states of every response and answers all but the tasks' question (`judge_tasks`). `scratch` holds the states meanwhile and is removed.
    In the same engine both speculators draft `depth` tokens a step, for comparison with the trainer's unroll."""
    try:
        store, parity = _ask_engine(
            outputs, prompts, target, serving, speculators, depth, evaluation, scratch
        )
        text = _text_findings(outputs, prompts, _Head(target.directory(), store), evaluation)
        details = {
            regime: {
                variant: _predicted_and_counted(
                    outputs,
                    regime,
                    variant,
                    prompts,
                    speculators[variant],
                    target.directory(),
                    store,
                    k,
                    serving,
                )
                for variant in ("base", "custom")
            }
            for regime in REGIMES
        }
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return {
        "requests": len(prompts),
        "parity": parity,
        **text,
        "replay_vs_engine": {
            variant: _relative(
                sum(details[regime][variant]["predicted_steps"] for regime in REGIMES),
                sum(details[regime][variant]["counted_drafts"] for regime in REGIMES),
            )
            for variant in ("base", "custom")
        }
        | {"details": details},
    }


def examine_text(
    outputs: Mapping[str, Any],
    prompts: Sequence[Prompt],
    *,
    target: TargetConfig,
    serving: ServingConfig,
    evaluation: EvalConfig,
    scratch: Path,
) -> dict[str, Any]:
    """The same for speculators that are not computed here: whether the outputs are the target's, and no more."""
    from outrider.data.features.capture import capture_ids
    from outrider.data.features.feature_store import FeatureStore
    from outrider.serving.engine import open_engine

    try:
        with open_engine(target, serving.engine.model_copy(update={"mode": "eager"})) as engine:
            capture_ids(engine, _rows(outputs, prompts), scratch)
        heads = _Head(target.directory(), FeatureStore.open(scratch))
        return {"requests": len(prompts), **_text_findings(outputs, prompts, heads, evaluation)}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _text_findings(
    outputs: Mapping[str, Any], prompts: Sequence[Prompt], heads: "_Head", evaluation: EvalConfig
) -> dict[str, Any]:
    """Greedy responses compared with those without speculation, and what the target thinks of the sampled tokens."""
    without = outputs["greedy"]["none"]["token_ids"]
    greedy = {
        variant: compare_greedy(
            without,
            outputs["greedy"][variant]["token_ids"],
            lambda response, index, token, other: heads.gap(
                prompts[response], without[response], index, token, other
            ),
            evaluation.gate.near_tie_nats,
        )
        for variant in ("base", "custom")
    }
    temperature = outputs["samplings"]["sampled"]["temperature"]
    sampled_text = {
        variant: text_statistics(
            [
                heads.logprobs(prompt, ids, temperature)
                for prompt, ids in zip(prompts, recorded["token_ids"], strict=True)
            ]
        )
        for variant, recorded in outputs["sampled"].items()
    }
    return {"greedy": greedy, "sampled_text": sampled_text}


def judge_tasks(
    outputs: Mapping[str, Any],
    prompts: Sequence[Prompt],
    target: TargetConfig,
    evaluation: EvalConfig,
) -> dict[str, Any] | None:
    """Greedy and sampled responses together; a prompt without a known answer is left out."""
    task = task_of(evaluation)
    if task is None:
        return None
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target.directory())
    solved: dict[str, list[bool]] = {variant: [] for variant in outputs["greedy"]}
    sessions: list[str] = []
    for regime in REGIMES:
        for index, prompt in enumerate(prompts):
            marks = {}
            for variant, recorded in outputs[regime].items():
                ids = recorded["token_ids"][index]
                ids = ids[:-1] if ids and ids[-1] == tokenizer.eos_token_id else ids
                marks[variant] = task(prompt.text, tokenizer.decode(ids))
            if None not in marks.values():
                sessions.append(prompt.session)
                for variant, mark in marks.items():
                    solved[variant].append(bool(mark))
    if not sessions:
        return None
    return task_accuracy(solved, sessions, evaluation.gate.max_task_loss)


def _row_id(prompt: Prompt, completion: Sequence[int]) -> str:
    """The same tokens are captured once, whichever variant wrote them."""
    return hashlib.sha256(
        np.asarray([*prompt.token_ids, -1, *completion], np.int32).tobytes()
    ).hexdigest()


def _rows(
    outputs: Mapping[str, Any], prompts: Sequence[Prompt]
) -> list[tuple[str, list[int], int]]:
    """Every response with its prompt, for capture: id, token ids, where the response begins."""
    rows = {
        _row_id(prompt, ids): (
            _row_id(prompt, ids),
            [*prompt.token_ids, *ids],
            len(prompt.token_ids),
        )
        for regime in REGIMES
        for recorded in outputs[regime].values()
        for prompt, ids in zip(prompts, recorded["token_ids"], strict=True)
    }
    return list(rows.values())


def _ask_engine(
    outputs: Mapping[str, Any],
    prompts: Sequence[Prompt],
    target: TargetConfig,
    serving: ServingConfig,
    speculators: Mapping[str, Path],
    depth: int,
    evaluation: EvalConfig,
    scratch: Path,
) -> tuple[Any, dict[str, Any]]:
    """A store of every response's states, and both speculators' draft parity, from one engine."""
    from outrider.data.features.capture import capture_ids
    from outrider.data.features.feature_store import FeatureStore
    from outrider.serving.engine import open_engine
    from outrider.serving.vllm_hooks.draft_recorder import DRAFT_EXTENSION

    eager = serving.engine.model_copy(update={"mode": "eager"})
    asked = [prompt.token_ids for prompt in prompts[: evaluation.parity.prompts]]
    with open_engine(
        target, eager, speculators["custom"], depth, extension=DRAFT_EXTENSION
    ) as engine:
        capture_ids(engine, _rows(outputs, prompts), scratch)
        recordings = record_each(engine, speculators, asked, evaluation.parity)
    parity = compare_each(
        recordings, speculators, target, depth, evaluation.parity, evaluation.replay_dtype
    )
    return FeatureStore.open(scratch), parity


class _Head:
    """The target's log-probabilities, from captured states."""

    def __init__(self, target_dir: Path, store: Any) -> None:
        from outrider.speculators.checkpoints.target_ends import load_target_ends

        self.store, self.ends = store, load_target_ends(target_dir)

    def logprobs(self, prompt: Prompt, completion: Sequence[int], temperature: float) -> np.ndarray:
        """Of each token of the completion, at the sampling temperature, before any top-p cut."""
        import torch

        features = self.store.read(_row_id(prompt, completion))
        start = features.completion_start
        scaled_TV = self.ends.logits(features.hidden[start - 1 : -1].float()) / (temperature or 1.0)
        token_T = features.token_ids[start:].long()
        return torch.log_softmax(scaled_TV, dim=-1).gather(-1, token_T[:, None])[:, 0].numpy()

    def gap(
        self, prompt: Prompt, completion: Sequence[int], index: int, token: int, other: int
    ) -> float:
        """How far apart two candidates for the completion's token `index` are, in nats."""
        features = self.store.read(_row_id(prompt, completion))
        logits_V = self.ends.logits(features.hidden[features.completion_start + index - 1].float())
        return abs(float(logits_V[token] - logits_V[other]))


def _predicted_and_counted(
    outputs: Mapping[str, Any],
    regime: str,
    variant: str,
    prompts: Sequence[Prompt],
    speculator: Path,
    target_dir: Path,
    store: Any,
    k: int,
    serving: ServingConfig,
) -> dict[str, Any]:
    """Steps: the engine's drafts. Acceptance length in the delivered form, tokens after each response's first over steps; the counters'
    form, 1 + accepted / drafts, is larger by the drafts accepted past the ends of responses."""
    recorded, sampling = outputs[regime][variant], outputs["samplings"][regime]
    rows = [
        {"sequence_id": _row_id(prompt, ids), "session": prompt.session}
        for prompt, ids in zip(prompts, recorded["token_ids"], strict=True)
    ]
    override = Sampling(sampling["temperature"], sampling["top_p"])
    sums = replay(speculator, target_dir, store, rows, k, serving.draft_sample_method, override)
    predicted, counted = float(sums.steps_RK[:, k - 1].sum()), recorded["counters"]["drafts"]
    delivered = float(sums.tokens_R.sum())
    return {
        "predicted_steps": predicted,
        "counted_drafts": counted,
        "relative_difference": _relative(predicted, counted),
        "delivered_tokens": delivered,
        "acceptance_length_delivered": {
            "replay": delivered / predicted,
            "engine": delivered / counted,
        },
        "acceptance_length_counters": 1 + recorded["counters"]["accepted_tokens"] / counted,
        "cumulative": {
            "replay": sums.cumulative(k),
            "engine": [
                accepted / counted for accepted in recorded["counters"]["accepted_per_position"]
            ],
        },
    }


def _relative(predicted: float, counted: float) -> float:
    return predicted / counted - 1
