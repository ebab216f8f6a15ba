"""Advice on a log before anything is computed: what its split, size and token ids will cost.

    for text in advise(ingested, divided, split): print(text)

Each text names what was found, what it costs and the key or the setting that changes it.
"""

import math
from collections.abc import Mapping
from typing import Any

from outrider.common.sample_size import ENOUGH_SESSIONS, LEAST_SESSIONS
from outrider.data.config import SplitConfig
from outrider.data.exchange import SAMPLED_OTHERWISE
from outrider.data.ingest.chunks import CONVERSATION
from outrider.data.split.split import BEGAN_EARLIER, PARTS, SEEN

MOST_LEFT_OUT = 0.1
"""Largest share of the exchanges that a split may leave out without advice. What its limits leave
out is intended."""

SMALL_TRAFFIC = 200
"""Exchanges below which traffic is small."""

RETOKENIZED_LOSS = (0.31, 0.18)
"""Shares of 644 responses without token ids to prompts of other kinds than nano R1's: those of
another length than the engine counted, and those that capture quarantined."""


def advise(
    ingested: Mapping[str, Any], divided: Mapping[str, Any] | None, split: SplitConfig
) -> list[str]:
    """All advice on an ingest's summary and a split's, which is None where none is possible."""
    return [
        *sessions_advice(ingested),
        *(split_advice(divided, split) if divided else []),
        *fidelity_advice(ingested),
        *sampling_advice(ingested),
    ]


def split_advice(summary: Mapping[str, Any], split: SplitConfig) -> list[str]:
    """Advice on a split's summary (`parts.json`): what it leaves out, and what its size decides."""
    left_out = summary["left_out"]
    kept = sum(summary[part]["sequences"] for part in PARTS)
    total = kept + sum(left_out.values())
    advice = []
    for reasons, fix in (
        (
            (BEGAN_EARLIER,),
            "sessions without a conversation id end after split.session_gap_minutes ="
            f" {split.session_gap_minutes:g}: lower it, give the rows times, or log ids of"
            " conversations and no lasting ids as session_id (docs/traffic.md)",
        ),
        (
            tuple(SEEN.values()),
            "if these prompts are different work under one template, raise"
            f" split.near_duplicate_similarity = {split.near_duplicate_similarity:g}",
        ),
    ):
        count = sum(left_out.get(reason, 0) for reason in reasons)
        if count > MOST_LEFT_OUT * total:
            named = " and ".join(reason for reason in reasons if left_out.get(reason))
            advice.append(
                f"the split leaves out {count:,} of {total:,} exchanges ({count / total:.0%}) as"
                f" {named}; {fix}"
            )
    return advice + size_advice(summary, split)


def size_advice(summary: Mapping[str, Any], split: SplitConfig) -> list[str]:
    """What a small log can decide, and how much more would decide."""
    sessions = summary["heldout"]["sessions"]
    exchanges = sum(summary[part]["sequences"] for part in PARTS)
    if sessions >= ENOUGH_SESSIONS and exchanges >= SMALL_TRAFFIC:
        return []
    least, enough = (
        math.ceil(count / split.heldout_fraction) for count in (LEAST_SESSIONS, ENOUGH_SESSIONS)
    )
    have = f"small traffic: {exchanges:,} exchanges, {sessions} held-out sessions"
    if sessions < LEAST_SESSIONS:
        return [
            f"{have}; the verdict will be undecided: it needs at least {LEAST_SESSIONS} held-out"
            f" sessions, about {least} in the log at split.heldout_fraction ="
            f" {split.heldout_fraction:g}, and about {enough} for intervals of the usual width."
            " Give more traffic, or set split.session_gap_minutes lower where sessions are users'"
        ]
    if sessions < ENOUGH_SESSIONS:
        return [
            f"{have}; intervals are wide, so a small gain stays undecided and a loss may too."
            f" {ENOUGH_SESSIONS} held-out sessions, about {enough} in the log, give intervals of"
            " the usual width"
        ]
    return [
        f"{have}; enough for intervals, but the speculator learns from"
        f" {summary['train']['sequences']} exchanges only: expect a small gain"
    ]


def fidelity_advice(summary: Mapping[str, Any]) -> list[str]:
    """Advice on an ingest's summary: what rows without token ids will cost."""
    retokenized = summary["fidelity"].get("retokenized", 0)
    exchanges = summary["exchanges"]
    if not retokenized:
        return []
    advice = []
    prompts = summary["prompt_tokens_against_usage"]
    if other := prompts.get("different", 0):
        advice.append(
            f"{other:,} of {sum(prompts.values()):,} prompts without token ids have another length"
            " than the engine counted: the endpoint uses another chat template, or a gateway adds"
            " text. Put the endpoint's template into the target's directory, or log token ids"
        )
    text = f"{retokenized:,} of {exchanges:,} exchanges have no token ids and are tokenized again"
    counts = summary["retokenized_against_usage"]
    counted = sum(counts.values())
    if counted:
        different = counts.get("different", 0)
        text += (
            f": {different:,} of the {counted:,} with a logged count have another length than the"
            f" engine counted ({different / counted:.0%})"
        )
    else:
        text += " without a logged count to check them"
    other, quarantined = RETOKENIZED_LOSS
    advice.append(
        f"{text}. Their tokens may not be the target's: capture quarantines what is not on-policy"
        f" (capture.min_on_policy; {quarantined:.0%} of a log of nano R1's in which {other:.0%}"
        " had another length). Exact tokens: send `return_token_ids: true` with every request,"
        " from the client or the gateway; vLLM then returns prompt_token_ids and token_ids in the"
        " response"
    )
    return advice


def sampling_advice(summary: Mapping[str, Any]) -> list[str]:
    """Advice on an ingest's summary: responses that a grammar or another parameter shaped."""
    counts = {name: n for name, n in summary["rejects"].items() if name in SAMPLED_OTHERWISE}
    total = sum(counts.values())
    if not total:
        return []
    named = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    text = (
        f"{total:,} of {total + summary['exchanges']:,} exchanges are set aside for how they were"
        f" sampled ({named}): they are neither trained on nor measured, and every figure of the"
        " report is for the others (docs/traffic.md)"
    )
    if counts.keys() & {"min_p", "other_sampling"}:
        text += ". vLLM refuses requests with min_p or logit_bias while it speculates"
    return [text]


def sessions_advice(summary: Mapping[str, Any]) -> list[str]:
    """Advice on an ingest's summary: sessions that no pause can end, for want of times."""
    kinds = summary["sessions"].get("exchanges", {})
    lasting = sum(count for kind, count in kinds.items() if kind != CONVERSATION)
    if not lasting or summary["without_time"] < summary["exchanges"]:
        return []
    return [
        f"{lasting:,} exchanges have neither a conversation id nor a time, so that no pause can end"
        " a session: all exchanges of a user, or of a first question, are one session. Log"
        " `timestamp`, or keep `created` of the responses"
    ]
