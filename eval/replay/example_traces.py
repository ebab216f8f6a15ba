"""Example responses step by step: tokens from drafts and from the target.

    walk(response_T, lambda anchor: drafts)       # the steps of one response
    sample_responses(base, custom, k=3, speculators=speculators, target_dir=target_dir, store=store)

Greedy drafts make the chain of steps deterministic: each step is the one that the engine would have
taken for the logged response, and exact replay gives the same number of steps. The three responses
are at fixed quantiles of the custom speculator's gain, so they are not hand-picked. They are
customer text, so they are created only with `report.samples`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from outrider.data.features.feature_store import FeatureStore
from outrider.eval.replay.replay import load_replay_model, replay_batches, unroll_responses
from outrider.eval.replay.sums import ReplaySums
from outrider.serving.client import Sampling

PLACES = {"gains least": 0.1, "gains a typical amount": 0.5, "gains most": 0.9}
"""Label of a shown response -> its quantile of custom / base acceptance on the held-out part."""

SHOWN_STEPS = 80
"""Maximum number of steps shown per response; later ones are only counted."""

Step = tuple[int, int]
"""(accepted drafts, delivered tokens); the latter is one more, unless a draft ends the response."""


def walk(response: Sequence[int], drafts_at: Callable[[int], list[int]]) -> list[Step]:
    """Steps of a response with greedy drafts, after the prefill's first token.

    `drafts_at(anchor)` returns the drafts after token `anchor` of the response.
    """
    steps = []
    anchor = 0
    last = len(response) - 1
    while anchor < last:
        drafts = drafts_at(anchor)
        accepted = 0
        most = min(len(drafts), last - anchor)
        while accepted < most and drafts[accepted] == response[anchor + 1 + accepted]:
            accepted += 1
        delivered = min(accepted + 1, last - anchor)
        steps.append((accepted, delivered))
        anchor += delivered
    return steps


def walks(
    *,
    speculator_dir: Path,
    target_dir: Path,
    store: FeatureStore,
    sequence_ids: Sequence[str],
    k: int,
    dtype: str = "float32",
) -> list[list[Step]]:
    """The steps of each response with this speculator's k greedy drafts."""
    model = load_replay_model(speculator_dir, target_dir, dtype)
    head = model.drafter.head(model.ends)
    rows = [{"sequence_id": name, "session": name} for name in sequence_ids]
    steps = []
    for batch in replay_batches(store, rows, Sampling(0.0, 1.0)):
        for response in batch:
            states = unroll_responses(model, [response], k).states
            logits = (head.logits(u_NH).argmax(dim=-1) for u_NH in states)
            drafts_NK = torch.stack([head.to_target(draft_N) for draft_N in logits], dim=1).tolist()
            completion = response.states.token_ids[response.states.completion_start :].tolist()
            steps.append(walk(completion, drafts_NK.__getitem__))
    return steps


def sample_responses(
    base: ReplaySums,
    custom: ReplaySums,
    *,
    k: int,
    speculators: Mapping[str, Path],
    target_dir: Path,
    store: FeatureStore,
    dtype: str = "float32",
) -> list[dict[str, Any]]:
    """Dicts for `eval.results.report.Example`; fewer than PLACES if there are few responses."""
    decode = Tokenizer.from_file(str(target_dir / "tokenizer.json")).decode
    order = np.argsort(base.steps_RK[:, k - 1] / custom.steps_RK[:, k - 1], kind="stable")
    labels = {base.sequence_ids[order[int(q * len(order))]]: name for name, q in PLACES.items()}
    taken = {
        variant: walks(
            speculator_dir=directory,
            target_dir=target_dir,
            store=store,
            sequence_ids=list(labels),
            k=k,
            dtype=dtype,
        )
        for variant, directory in speculators.items()
    }
    examples = []
    for number, (sequence_id, label) in enumerate(labels.items()):
        features = store.read(sequence_id)
        response = features.token_ids[features.completion_start :].tolist()
        example: dict[str, Any] = {"place": label, "tokens": len(response) - 1}
        for variant, steps_of in taken.items():
            shown = _in_text(response, steps_of[number][:SHOWN_STEPS], decode)
            example[variant] = {"steps": len(steps_of[number]), "shown": shown}
        examples.append(example)
    return examples


def _in_text(
    response: Sequence[int], steps: Sequence[Step], decode: Callable[..., str]
) -> list[tuple[str, str]]:
    """The text of each step: accepted drafts, and the target's own token."""
    # The prefill delivers the first token, without drafts.
    shown = [("", decode(response[:1], skip_special_tokens=False))]
    start = 1
    for accepted, delivered in steps:
        sampled_at = start + accepted
        end = start + delivered
        drafted = decode(response[start:sampled_at], skip_special_tokens=False)
        sampled = decode(response[sampled_at:end], skip_special_tokens=False)
        shown.append((drafted, sampled))
        start = end
    return shown
