"""Example responses as the engine takes them, step by step: which tokens came from a draft, which the target had to write itself.

    walk(response_T, lambda anchor: drafts)       # the steps of one response
    sample_responses(base, custom, 3, speculators, target_dir, store)

Greedy drafts make the chain of steps deterministic, so each step is what the engine would have done with the logged response; the number
of steps is exact replay's. Three responses are shown, where the custom speculator gains least, as usual and most, so that nobody
picks the pretty ones. All of this is customer text: it is made only where `report.samples` allows it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outrider.eval.replay.replay import ReplaySums, StatesByToken, batches, unroll_responses
from outrider.serving.client import Sampling

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PLACES = {"gains least": 0.1, "gains as usual": 0.5, "gains most": 0.9}
"""Which responses are shown, and the quantile of custom / base over the held-out responses at which they stand."""

HEAD, TAIL = 200, 100
"""Tokens shown of a response's beginning and of its end; what lies between is counted."""


@dataclass(frozen=True)
class Step:
    """One step of the engine. `start` counts from the response's first token, which the prefill delivers before any step."""

    start: int
    """Place of the first token that the step delivers"""
    drafts: list[int]
    """Ids of the k drafted tokens"""
    accepted: int
    """How many of them are in the response"""
    delivered: int
    """Tokens delivered: the accepted ones and one more of the target's own, unless the response ends"""


def walk(response: Sequence[int], drafts_at: Callable[[int], list[int]]) -> list[Step]:
    """The steps of a response under greedy drafts. `drafts_at(anchor)` drafts after the response's token `anchor`."""
    steps, anchor, last = [], 0, len(response) - 1
    while anchor < last:
        drafts, accepted = drafts_at(anchor), 0
        while (
            accepted < min(len(drafts), last - anchor)
            and drafts[accepted] == response[anchor + 1 + accepted]
        ):
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

    from outrider.speculators.checkpoints.mtp_checkpoint import load_mtp, load_target_ends

    device = "cuda" if torch.cuda.is_available() else "cpu"
    number = getattr(torch, dtype)
    speculator = load_mtp(speculator_dir, dtype=number).to(device).eval()
    ends = load_target_ends(target_dir).to(device=device, dtype=number)
    rows = [{"sequence_id": name, "session": name} for name in sequence_ids]
    found = []
    for batch in batches(store, rows, Sampling(0.0, 1.0)):
        for response in batch:
            drafted = unroll_responses(speculator, ends, [response], k, device)

            def drafts_at(anchor: int, states: Sequence[Any] = drafted.states) -> list[int]:
                return (
                    ends.logits(torch.stack([u_NH[anchor] for u_NH in states]))
                    .argmax(dim=-1)
                    .tolist()
                )

            found.append(
                walk(response.token_ids_T[response.completion_start :].tolist(), drafts_at)
            )
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
    """The examples, for results: `k`, `head` (tokens shown before the gap) and per example its `place`, `tokens` delivered by steps, `left_out` between beginning and end, and for
    base and custom `steps`, `acceptance_length` (of this response, delivered) and `shown` (see `marked`)."""
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
        example = {
            "place": place,
            "tokens": len(response) - 1,
            "left_out": max(0, len(response) - HEAD - TAIL),
        }
        for variant, steps_of in taken.items():
            steps = steps_of[number]
            shown = marked(tokenizer, texts, steps)
            example[variant] = {
                "steps": len(steps),
                "acceptance_length": (len(response) - 1) / len(steps),
                "shown": shown[:HEAD] + shown[HEAD:][-TAIL:],
            }
        examples.append(example)
    return {"k": k, "head": HEAD, "examples": examples}


def markdown_lines(samples: Mapping[str, Any]) -> list[str]:
    """The same as text: accepted drafts in square brackets, steps parted by a bar."""
    lines = [
        "Accepted drafts stand in [brackets]; a bar begins a step; the rest is the target's own."
    ]
    for example in samples["examples"]:
        lines += ["", f"### {example['tokens'] + 1:,} tokens, custom {example['place']}"]
        for variant in ("base", "custom"):
            of = example[variant]
            text = _bracketed(of["shown"][: samples["head"]])
            if example["left_out"]:
                text += f" ... {example['left_out']:,} tokens ... "
            text += _bracketed(of["shown"][samples["head"] :])
            lines += [
                "",
                f"{variant}: {of['steps']} steps, acceptance length {of['acceptance_length']:.2f}",
                "",
            ]
            lines += [
                f"    {line}" for line in text.splitlines()
            ]  # indented: the text may hold fences
    return lines


def _bracketed(tokens: Sequence[Mapping[str, Any]]) -> str:
    text, inside, step = "", False, 0
    for token in tokens:
        accepted = token["kind"] == "accepted"
        if inside and (not accepted or token["step"] != step):
            text, inside = text + "]", False
        if token["step"] != step:
            text, step = text + "|", token["step"]
        if accepted and not inside:
            text, inside = text + "[", True
        text += token["text"]
    return text + "]" * inside


def choose(base: ReplaySums, custom: ReplaySums, k: int) -> dict[str, str]:
    """place -> sequence id, at PLACES' quantiles of the responses by acceptance length custom / base; fewer where there are fewer."""
    order = np.argsort(base.steps_RK[:, k - 1] / custom.steps_RK[:, k - 1], kind="stable")
    chosen: dict[str, str] = {}
    for place, quantile in PLACES.items():
        sequence_id = base.sequence_ids[order[int(quantile * len(order))]]
        if sequence_id not in chosen.values():
            chosen[place] = sequence_id
    return chosen


def marked(
    tokenizer: "Tokenizer", texts: Sequence[str], steps: Sequence[Step]
) -> list[dict[str, Any]]:
    """Each token of the response: its `text`, the number of its `step` (0: the prefill), and its `kind`: `first` (the prefill's), `accepted`
    (a draft), `own` (the target's instead of the draft `instead`) or `extra` (the target's after all k drafts were accepted)."""
    shown: list[dict[str, Any]] = [{"text": texts[0], "step": 0, "kind": "first"}] if texts else []
    for number, step in enumerate(steps, start=1):
        for place in range(step.delivered):
            token: dict[str, Any] = {"text": texts[step.start + place], "step": number}
            if place < step.accepted:
                token["kind"] = "accepted"
            elif step.accepted < len(step.drafts):
                token |= {
                    "kind": "own",
                    "instead": tokenizer.decode(
                        [step.drafts[step.accepted]], skip_special_tokens=False
                    ),
                }
            else:
                token["kind"] = "extra"
            shown.append(token)
    return shown


def pieces(tokenizer: "Tokenizer", token_ids: Sequence[int]) -> list[str]:
    """The text of each token; a character that several tokens spell stands at the last of them."""
    texts, since = [], 0
    for index in range(len(token_ids)):
        text = tokenizer.decode(list(token_ids[since : index + 1]), skip_special_tokens=False)
        # At most four bytes make a character; what is still broken then was never one.
        if text.endswith("\ufffd") and index - since < 3 and index + 1 < len(token_ids):
            texts.append("")
        else:
            texts.append(text)
            since = index + 1
    return texts
