"""The verdict: `ship` only if custom is significantly better and lossless.

    judge_findings(findings, settings.gate).verdict

Every check is listed with its measurement as passed, failed or undecided. Any failed check gives
`do not ship`; otherwise any undecided check gives `undecided`. The reason names the first such
check, or else the gains.
"""

from typing import Literal

from outrider.common.tolerance import Tolerance
from outrider.eval.config import DO_NOT_SHIP, SHIP, UNDECIDED, GateConfig
from outrider.eval.lossless.task_accuracy import responses_needed
from outrider.eval.results.parts import ClusteredEstimate, Variants, interval
from outrider.eval.results.report import Check, Findings, Outcome, Verdict
from outrider.eval.results.sections import (
    Equivalence,
    Excess,
    GreedyComparison,
    OnPolicy,
    ReplayAgainstEngine,
    SameText,
)
from outrider.eval.speed_checks import outcome_above, speed_checks
from outrider.eval.stats.intervals import units_needed
from outrider.speculators.kinds import lookup_names

NOT_SERVED = {"scrambled", "foreign", "template", "temperature"}
"""Off-policy causes (data/on_policy) for which the logged prompts, tokens or sampling differ from
the endpoint's, so measurements with them do not carry over to serving. A different template can
look like a different temperature: both make the logged tokens less likely. Text that was edited,
retokenized or written by another revision is only reported; checks on engine counts apply."""

LEAST_GREEDY_P = 0.01
"""Minimum p-value in the test of whether speculation changes more greedy responses than different
batching does; a lossless engine falls below it in at most 1 % of evaluations."""


def judge_findings(findings: Findings, gate: GateConfig) -> Verdict:
    """Checks every condition and returns the verdict."""
    checks = speed_checks(findings, gate)
    if findings.speculator.kind not in lookup_names():  # untrained, so it only has to be faster
        # Exact replay has both at custom's K, since acceptance length grows with K; the engine's
        # counters have each at its own.
        name = f"acceptance length, custom / base, {findings.at_k}"
        how = "" if findings.replay else ", counted by the engine"
        ratio = findings.acceptance_ratio
        checks.insert(0, check_over_sessions(name, ratio, gate.min_acceptance_ratio, how))
    if findings.general:
        name = "acceptance length on general traffic, custom / base"
        checks.append(check_over_sessions(name, findings.general.ratio, 1 - gate.max_general_loss))
    if findings.own_text:
        checks.append(_on_policy(findings.own_text))
    for mode, checked in findings.verification.modes.items():
        checks += [
            _greedy(mode, checked.greedy.custom, checked.control, checked.excess),
            _sampled_text(mode, checked.tail_share, gate),
            _same_text(mode, checked.same_text, gate),
        ]
        if checked.replay_vs_engine:
            checks.append(_replay(mode, checked.replay_vs_engine, gate))
    if findings.verification.task:
        checks.append(_task(findings.verification.task.custom_minus_none, gate))
    return conclude_checks(checks, findings.not_measured)


def conclude_checks(checks: list[Check], unchecked: dict[str, str]) -> Verdict:
    """Derives the verdict; `unchecked` maps each unchecked figure to the reason."""
    # One failed check decides even if others are undecided: more data cannot undo it.
    failed = [check for check in checks if check.outcome == "failed"]
    open_ = [check for check in checks if check.outcome == "undecided"]
    verdict: Literal["ship", "do not ship", "undecided"] = SHIP
    if open_:
        verdict = UNDECIDED
    if failed:
        verdict = DO_NOT_SHIP
    decisive = failed or open_
    if decisive:
        first = decisive[0]
        more = f" (and {len(decisive) - 1} more)" if len(decisive) > 1 else ""
        reason = f"{first.name}: {first.seen}, but {first.demand}{more}"
    else:
        reason = "; ".join(f"{check.name}: {check.seen}" for check in checks[:2])
    if unchecked:
        why = next(iter(unchecked.values()))
        reason += f". Not checked: {', '.join(unchecked)} ({why})"
    return Verdict(verdict=verdict, reason=reason, checks=checks)


def _outcome(passed: bool) -> Outcome:
    return "passed" if passed else "failed"


def _on_policy(own_text: OnPolicy) -> Check:
    unchecked = f", {own_text.not_checked} not checked" if own_text.not_checked else ""
    return Check(
        name="held-out text is on-policy",
        outcome=_outcome(own_text.cause not in NOT_SERVED),
        seen=f"{own_text.sequences} sequences{unchecked}: {own_text.text}",
        demand="prompts and responses must be those that the endpoint reads and writes: the same "
        "target, chat template and sampling",
    )


def check_over_sessions(name: str, ratio: ClusteredEstimate, least: float, how: str = "") -> Check:
    """Checks that a ratio's interval over sessions lies above `least`."""
    demand = f"the interval must lie above {least:g}"
    if ratio.low is None or ratio.high is None:
        seen = f"{ratio.value:.3f}, {ratio.undecided()}"
        return Check(name=name, outcome="undecided", seen=seen, demand=demand)
    outcome = outcome_above(ratio.low, ratio.high, least)
    # Below the threshold, more data would fail the check, so no number is named.
    if outcome == "undecided" and ratio.value > least:
        needed = units_needed(
            value=ratio.value, low=ratio.low, high=ratio.high, threshold=least, units=ratio.clusters
        )
        demand += f" (undecided: about {needed:,} would be needed)"
    seen = f"{interval(ratio, 3)} over {ratio.over}{how}"
    return Check(name=name, outcome=outcome, seen=seen, demand=demand)


def _greedy(mode: str, custom: GreedyComparison, alone: GreedyComparison, added: Excess) -> Check:
    """Checks that speculation causes no more differences than different batching does.

    Near ties count too. If different batching alone causes only near ties, it cannot explain other
    differences, but a few of them do not prove a fault either, so the check is then undecided.
    """
    failed = added.p_value < LEAST_GREEDY_P
    undecided = bool(custom.unexplained) and not alone.unexplained
    demand = (
        "speculation must not add differences (one-sided sign test: p at least "
        f"{LEAST_GREEDY_P:g}), nor unexplained ones if there are none without it"
    )
    if undecided and not failed:
        demand += " (undecided: raise eval.verification_requests)"
    outcome: Outcome = "undecided" if undecided else "passed"
    return Check(
        name=f"greedy outputs with and without speculation, {mode}",
        outcome="failed" if failed else outcome,
        seen=f"{custom.equal} of {custom.responses} equal, {len(custom.near_ties)} differ after a "
        f"near tie, {len(custom.unexplained)} unexplained; without speculation in other batches "
        f"{alone.equal} of {alone.responses} equal, {len(alone.unexplained)} unexplained; excess "
        f"{added.value:+.1%}, p = {added.p_value:.2g}",
        demand=demand,
    )


def _sampled_text(mode: str, tail: Variants[float], gate: GateConfig) -> Check:
    return Check(
        name=f"sampled tokens are likely under the target, {mode}",
        outcome=_outcome(tail.custom - tail.none <= gate.max_tail_excess),
        seen=f"{tail.custom:.2%} of tokens below probability 1e-4 with speculation, "
        f"{tail.none:.2%} without",
        demand=f"at most {gate.max_tail_excess:.1%} more",
    )


def _same_text(mode: str, frequencies: SameText, gate: GateConfig) -> Check:
    return Check(
        name=f"sampled responses have the same token frequencies, {mode}",
        outcome=_outcome(frequencies.p_value >= gate.min_same_text_p),
        seen=f"permutation test over {frequencies.prompts} prompts ({frequencies.tokens} tokens): "
        f"p = {frequencies.p_value:.3g}",
        demand=f"p must be at least {gate.min_same_text_p:g}",
    )


def _task(difference: Equivalence, gate: GateConfig) -> Check:
    margin = gate.max_task_loss
    outcome: Outcome = "passed" if difference.within(margin) else "undecided"
    if difference.low >= margin or difference.high <= -margin:
        outcome = "failed"
    demand = f"the interval must lie between {-margin:g} and {margin:g}"
    if outcome == "undecided":
        needed = responses_needed(difference.variance, margin - abs(difference.value))
        more = f"about {needed:,} responses would be needed" if needed else "it is too large"
        demand += f" (undecided: {more})"
    return Check(
        name="task accuracy with and without speculation",
        outcome=outcome,
        seen=f"custom minus none {difference.value:+.3f}, 90 % interval "
        f"[{difference.low:+.3f}, {difference.high:+.3f}] over {difference.observations} responses",
        demand=demand,
    )


def _replay(mode: str, difference: ReplayAgainstEngine, gate: GateConfig) -> Check:
    # A difference of either shows that replay does not describe the engine.
    worst = max(abs(difference.base), abs(difference.custom))
    most = Tolerance(gate.max_replay_difference, difference.control, gate.replay_margin)
    outcome = most.outcome(worst)
    noisy = " (undecided: the engine's own differences are larger)"
    return Check(
        name=f"replay against engine, {mode}",
        outcome=outcome,
        seen=f"steps predicted / counted - 1: base {difference.base:+.2%}, "
        f"custom {difference.custom:+.2%}; the engine against itself {difference.control:.2%}",
        demand=f"both must lie within {most.describe()}"
        + (noisy if outcome == "undecided" else ""),
    )
