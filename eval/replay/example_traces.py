"""Example responses step by step: which tokens came from a draft, which from the target.

    walk(response_T, lambda anchor: drafts)       # the steps of one response
    sample_responses(base, custom, 3, speculators, target_dir, store)

Greedy drafts make the chain of steps deterministic, so each step is what the engine would have done
with the logged response, and the number of steps is that of exact replay. Three responses are
shown, at fixed quantiles of the custom speculator's gain, so nobody picks them. All of this is
customer text: it is made only where `report.samples` allows it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outrider.eval.replay.replay import (
    ReplaySums,
    StatesByToken,
    batches,
    load_replayed,
    unroll_responses,
)
from outrider.serving.client import Sampling

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PLACES = {"gains least": 0.1, "gains as usual": 0.5, "gains most": 0.9}
"""Shown responses by their quantile of acceptance length custom / base over the held-out part."""

SHOWN_STEPS = 80
"""Steps shown of a response's beginning; the rest is counted."""


@dataclass(frozen=True)
class Step:
    """One step of the engine.

    `start` counts from the response's first token, which the prefill delivers before any step.
    """

    start: int
    """Index of the first token that the step delivers"""
    drafts: list[int]
    """Ids of the k drafted tokens"""
    accepted: int
    """Drafts that are in the response"""
    delivered: int
    """Accepted tokens, and one more from the target unless the response ends"""


def walk(response: Sequence[int], drafts_at: Callable[[int], list[int]]) -> list[Step]:
    """The steps of a response under greedy drafts.

    `drafts_at(anchor)` drafts after the response's token `anchor`.
    """
    steps, anchor, last = [], 0, len(response) - 1
    while anchor < last:
        drafts, accepted = drafts_at(anchor), 0
        most = min(len(drafts), last - anchor)
        while accepted < most and drafts[accepted] == response[anchor + 1 + accepted]:
            accepted += 1
        delivered = min(accepted + 1, last - anchor)
        steps.append(Step(anchor + 1, drafts, accepted, delivered))
        anchor += delivered
    return steps


def walks(
    speculator_dir: Path,
    target_dir: Path,
    store: StatesByToken,
    sequence_ids: Sequence[str],
    k: int,
    dtype: str = "float32",
) -> list[list[Step]]:
    """The steps of each response with this speculator's k greedy drafts."""
    import torch

    model = load_replayed(speculator_dir, target_dir, dtype)
    head = model.drafter.head(model.ends)
    rows = [{"sequence_id": name, "session": name} for name in sequence_ids]
    found = []
    for batch in batches(store, rows, Sampling(0.0, 1.0), model.spec):
        for response in batch:
            drafted = unroll_responses(model, [response], k)

            def drafts_at(
                anchor: int, states: Sequence[torch.Tensor] = drafted.states
            ) -> list[int]:
                logits_KD = head.logits(torch.stack([u_NH[anchor] for u_NH in states]))
                drafts: list[int] = head.to_target(logits_KD.argmax(dim=-1)).tolist()
                return drafts

            completion = response.token_ids_T[response.completion_start :].tolist()
            found.append(walk(completion, drafts_at))
    return found


def sample_responses(
    base: ReplaySums,
    custom: ReplaySums,
    k: int,
    speculators: Mapping[str, Path],
    target_dir: Path,
    store: StatesByToken,
    dtype: str = "float32",
) -> dict[str, Any]:
    """The `examples` for the results (`eval.results.report.Example`), as plain values."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(target_dir / "tokenizer.json"))
    chosen = choose(base, custom, k)
    taken = {
        variant: walks(speculators[variant], target_dir, store, list(chosen.values()), k, dtype)
        for variant in ("base", "custom")
    }
    examples = []
    for number, (place, sequence_id) in enumerate(chosen.items()):
        features = store.read(sequence_id)
        response = features.token_ids[features.completion_start :].tolist()
        texts = pieces(tokenizer, response)
        shown = {
            variant: {
                "steps": len(steps_of[number]),
                "shown": step_texts(texts, steps_of[number][:SHOWN_STEPS]),
            }
            for variant, steps_of in taken.items()
        }
        examples.append({"place": place, "tokens": len(response) - 1, **shown})
    return {"examples": examples}


def choose(base: ReplaySums, custom: ReplaySums, k: int) -> dict[str, str]:
    """Sequence id of each place in PLACES; fewer where there are fewer responses."""
    order = np.argsort(base.steps_RK[:, k - 1] / custom.steps_RK[:, k - 1], kind="stable")
    chosen: dict[str, str] = {}
    for place, quantile in PLACES.items():
        sequence_id = base.sequence_ids[order[int(quantile * len(order))]]
        if sequence_id not in chosen.values():
            chosen[place] = sequence_id
    return chosen


def step_texts(texts: Sequence[str], steps: Sequence[Step]) -> list[tuple[str, str]]:
    """The texts of each step's accepted drafts and of the target's own token.

    `texts` are those of the response's tokens. The first entry is the prefill, which drafts none.
    """
    shown = [("", texts[0])] if texts else []
    for step in steps:
        own = step.start + step.accepted
        end = step.start + step.delivered
        shown.append(("".join(texts[step.start : own]), "".join(texts[own:end])))
    return shown


def pieces(tokenizer: "Tokenizer", token_ids: Sequence[int]) -> list[str]:
    """The text of each token; a character of several tokens belongs to the last of them."""
    texts, since = [], 0
    for index in range(len(token_ids)):
        text = tokenizer.decode(list(token_ids[since : index + 1]), skip_special_tokens=False)
        # A character has at most four bytes; bytes that are still broken then are not a character.
        if text.endswith("\ufffd") and index - since < 3 and index + 1 < len(token_ids):
            texts.append("")
        else:
            texts.append(text)
            since = index + 1
    return texts
