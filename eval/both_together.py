"""What custom and the served lookup would deliver in one server, for the report.

    both = both_together(context, replays, choice)      # or why it is not predicted

The prediction is by replay alone (replay/both_together.py): vLLM 0.32 runs one method per server.
"""

from collections.abc import Mapping

import numpy as np

from outrider.eval.context import EvaluationContext
from outrider.eval.replay.both_together import (
    Anchors,
    StepTime,
    anchors_of,
    combine_drafters,
    fewest_steps,
    fit_rule,
)
from outrider.eval.replay.heldout_replay import Replays
from outrider.eval.replay.replay import logged_texts
from outrider.eval.replay.sums import ReplaySums
from outrider.eval.results.parts import ClusteredEstimate
from outrider.eval.results.sections import BothTogether, KChoice
from outrider.eval.stats.clusters import Statistic, clustered_estimate
from outrider.speculators.kinds.protocol import Lookup

EQUAL = StepTime(head_ms=1.0, lookup_ms=1.0, pass_ms=0.0)
"""Without timed steps: the rule with the fewest steps on the validation part."""


def both_together(
    context: EvaluationContext, replays: Mapping[str, Replays], choice: KChoice
) -> BothTogether | str:
    """Predicts custom and the served lookup together, or returns why it cannot."""
    reason = both_refusal(context, choice)
    if reason is not None:
        return reason
    assert choice.lookup is not None
    speculator = context.lookups[choice.lookup]
    lookup = speculator.replay_argument(context.runner(speculator))
    assert isinstance(lookup, Lookup)
    lookup_k = choice.lookups[choice.lookup].k

    def anchors(part: str) -> Anchors:
        head = replays[part]["custom"]
        rows = [{"sequence_id": name, "session": ""} for name in head.sequence_ids]
        texts = logged_texts(context.feature_store, rows)
        return anchors_of(head, choice.k.custom, texts=texts, lookup=lookup, lookup_k=lookup_k)

    return predict_both(
        validation=anchors("validation"),
        heldout=anchors("heldout"),
        custom=replays["heldout"]["custom"],
        lookup=replays["heldout"][choice.lookup],
        choice=choice,
    )


def both_refusal(context: EvaluationContext, choice: KChoice) -> str | None:
    """Why both together cannot be predicted; None if they can."""
    custom = context.speculators["custom"].drafter_kind
    if context.no_replay:
        return f"no exact replay of {context.no_replay[0]}"
    if not custom.has_weights:
        return f"{custom.in_words} is no head"
    if context.draft_sample_method != "greedy":
        return "sampled drafts (speculator.draft_sample_method) have no single number accepted"
    if choice.lookup is None:
        return "base is the only lookup"
    return None


def predict_both(
    *,
    validation: Anchors,
    heldout: Anchors,
    custom: ReplaySums,
    lookup: ReplaySums,
    choice: KChoice,
) -> BothTogether:
    """Fits the rule on validation, and applies it to the held-out responses.

    `custom` and `lookup` are the held-out replays of the two alone.
    """
    assert choice.lookup is not None
    time = step_time(choice)
    lookup_k = choice.lookups[choice.lookup].k
    combined = combine_drafters(heldout, fit_rule(validation, time or EQUAL))
    # Columns: tokens and steps of both together, then the milliseconds of both, custom and lookup.
    columns = [custom.tokens_R, combined.steps_R.astype(float)]
    if time:
        columns += [
            time.of_steps(combined.steps_R, combined.lookup_steps_R),
            time.head_ms * custom.steps_RK[:, choice.k.custom - 1],
            time.lookup_ms * lookup.steps_RK[:, lookup_k - 1],
        ]
    sums_RM = np.stack(columns, axis=1)

    def estimate(statistic: Statistic) -> ClusteredEstimate:
        return clustered_estimate(sums_RM, custom.sessions, statistic, users=custom.users)

    return BothTogether(
        lookup=choice.lookup,
        k=choice.k.custom,
        lookup_k=lookup_k,
        tokens_per_step=estimate(lambda s: s[..., 0] / s[..., 1]),
        lookup_share=float(combined.lookup_steps_R.sum() / combined.steps_R.sum()),
        upper_bound=float(custom.tokens_R.sum() / fewest_steps(heldout)),
        step_ms={"custom": time.head_ms, "lookup": time.lookup_ms, "both": time.both_ms}
        if time
        else None,
        over_custom=estimate(lambda s: s[..., 3] / s[..., 2]) if time else None,
        over_lookup=estimate(lambda s: s[..., 4] / s[..., 2]) if time else None,
    )


def step_time(choice: KChoice) -> StepTime | None:
    """Times at the main concurrency; None if custom's or the lookup's steps were not timed."""
    assert choice.lookup is not None
    lookup = choice.lookups[choice.lookup]
    head_ms = choice.step_ms.get("custom", {}).get(str(choice.main_concurrency), {})
    if choice.k.custom not in head_ms or lookup.k not in lookup.step_ms:
        return None
    return StepTime.of_timed(head_ms, choice.k.custom, lookup.step_ms, lookup.k)
