"""The verdict: `ship` only if the custom speculator is better by more than chance, and changes nothing but the speed.

Every check is listed with what it saw, passed or not; the reason names the first that failed, or what was gained.

    judge(results, gate)     # results: eval/evaluate.py's evaluation/results.json
"""

from dataclasses import asdict, dataclass
from typing import Any

from outrider.eval.config import GateConfig
from outrider.eval.lossless.tost import responses_needed
from outrider.eval.replay.draft_parity import complaint
from outrider.speculators.config import ParityConfig

SHIP, DO_NOT_SHIP = "ship", "do not ship"
EXIT_CODES = {SHIP: 0, DO_NOT_SHIP: 2}
"""What the commands exit with; 1 is an error."""


@dataclass(frozen=True)
class Check:
    """One condition of the verdict and what was seen."""

    name: str
    passed: bool
    seen: str
    demand: str


def judge(results: dict[str, Any], gate: GateConfig, parity: ParityConfig) -> dict[str, Any]:
    """The verdict, its one-line reason, the checks and the exit code."""
    checks = [_acceptance(results, gate), *_speeds(results, gate)]
    if results["general"]:
        checks.append(_general(results["general"]["ratio"], gate))
    if results.get("own_text"):
        checks.append(_own_text(results["own_text"]))
    verification = results["verification"]
    checks += [
        _lossless(verification["greedy"], gate),
        _sampled_text(verification["sampled_text"], gate),
    ]
    checks.append(_same_text(verification["same_text"]["custom"], gate))
    if verification.get("task"):
        checks.append(_task(verification["task"], gate))
    if verification["replay_vs_engine"]:
        checks.append(_replay(verification["replay_vs_engine"], gate))
    checks += [_parity(name, found, parity) for name, found in verification["parity"].items()]
    failed = [check for check in checks if not check.passed]
    if failed:
        verdict, more = DO_NOT_SHIP, f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        reason = f"{failed[0].name}: {failed[0].seen}, but {failed[0].demand}{more}"
    else:
        verdict = SHIP
        reason = "; ".join(f"{check.name}: {check.seen}" for check in checks[:2])
    unchecked = results.get("not_measured") or {}
    if unchecked:
        reason += f". Not checked: {', '.join(unchecked)} ({next(iter(unchecked.values()))})"
    return {
        "verdict": verdict,
        "reason": reason,
        "exit_code": EXIT_CODES[verdict],
        "checks": [asdict(check) for check in checks],
        "unchecked": unchecked,
    }


def _acceptance(results: dict[str, Any], gate: GateConfig) -> Check:
    replayed = results["replay"]
    ratio = replayed["ratio"] if replayed else results["counted"]["ratio"]
    over = "held-out sessions" if replayed else "groups of prompts, counted by the engine"
    return Check(
        "acceptance length, custom / base",
        ratio["low"] > gate.min_acceptance_ratio,
        f"{_interval(ratio)} over {ratio['clusters']} {over}",
        f"the interval must lie above {gate.min_acceptance_ratio:g}",
    )


NOT_SERVED = {"scrambled", "foreign", "template", "temperature"}
"""Causes (data/on_policy/causes.py) in which the logged prompts, tokens or sampling are not those of the endpoint, so that what was measured with them
is not what will be served. A template can pass for a temperature: both make the logged tokens less likely than they were. Text that was
edited, tokenized again or written by another revision is told in the report and judged by the engine's own count."""


def _own_text(found: dict[str, Any]) -> Check:
    return Check(
        "held-out text is the target's own",
        found["cause"] not in NOT_SERVED,
        f"{found['sequences']} sequences: {found['text']}",
        "prompts and responses must be those that the endpoint reads and writes (docs/traffic.md)",
    )


def _general(ratio: dict[str, Any], gate: GateConfig) -> Check:
    return Check(
        "acceptance length on general traffic, custom / base",
        ratio["low"] > 1 - gate.max_general_loss,
        f"{_interval(ratio)} over {ratio['clusters']} sessions",
        f"the interval must lie above {1 - gate.max_general_loss:g}",
    )


def _speeds(results: dict[str, Any], gate: GateConfig) -> list[Check]:
    checks = []
    for mode, measured in results["served"].items():
        concurrency = min(measured["speed"], key=int)
        ratio = measured["speed"][concurrency]["custom_over_base"]
        undecided = ratio["low"] <= gate.min_speed_ratio < ratio["high"]
        checks.append(
            Check(
                f"tokens/s, custom / base, {mode}, concurrency {concurrency}",
                ratio["low"] > gate.min_speed_ratio,
                _interval(ratio),
                f"the interval must lie above {gate.min_speed_ratio:g}"
                + (
                    " (it holds it: more eval.repeats or eval.requests decide)" if undecided else ""
                ),
            )
        )
    return checks


def _lossless(greedy: dict[str, Any], gate: GateConfig) -> Check:
    custom = greedy["custom"]
    share = custom["unexplained"] / custom["responses"]
    return Check(
        "greedy outputs with and without speculation",
        share <= gate.max_unexplained_differences,
        f"{custom['equal']} of {custom['responses']} equal, {custom['near_ties']} differ from a near tie on, "
        f"{custom['unexplained']} unexplained",
        f"at most {gate.max_unexplained_differences:.0%} may be unexplained",
    )


def _sampled_text(text: dict[str, Any], gate: GateConfig) -> Check:
    excess = text["custom"]["tail_share"] - text["none"]["tail_share"]
    return Check(
        "sampled tokens are the target's",
        excess <= gate.max_tail_excess,
        f"{text['custom']['tail_share']:.2%} of tokens below probability 1e-4 with speculation, {text['none']['tail_share']:.2%} without",
        f"at most {gate.max_tail_excess:.1%} more",
    )


def _same_text(found: dict[str, Any], gate: GateConfig) -> Check:
    return Check(
        "sampled responses have the same token frequencies",
        found["p_value"] >= gate.min_same_text_p,
        f"permutation test over {found['prompts']} prompts ({found['tokens']} tokens): p = {found['p_value']:.3g}",
        f"p must be at least {gate.min_same_text_p:g}",
    )


def _task(task: dict[str, Any], gate: GateConfig) -> Check:
    difference, margin = task["custom_minus_none"], gate.max_task_loss
    needed = responses_needed(difference["variance"], margin)
    wanted = (
        "" if needed <= difference["observations"] else f" (at this spread about {needed} could)"
    )
    return Check(
        "task accuracy with and without speculation",
        -margin < difference["low"] and difference["high"] < margin,
        f"custom minus none {difference['value']:+.3f}, 90 % interval [{difference['low']:+.3f}, {difference['high']:+.3f}] over "
        f"{difference['observations']} responses{wanted}",
        f"the interval must lie within {margin:g} on either side",
    )


def _replay(difference: dict[str, Any], gate: GateConfig) -> Check:
    worst = max(abs(difference["base"]), abs(difference["custom"]))
    return Check(
        "replay against engine",
        worst <= gate.max_replay_difference,
        f"steps predicted / counted - 1: base {difference['base']:+.2%}, custom {difference['custom']:+.2%}",
        f"both must lie within {gate.max_replay_difference:.0%}",
    )


def _parity(name: str, found: dict[str, Any], parity: ParityConfig) -> Check:
    depths = len(found["per_depth"])
    return Check(
        f"drafts of trainer and engine, {name}",
        complaint(found, parity) is None,
        f"{found['agreement']:.2%} of {found['steps']} x {depths} draft tokens equal, {found['near_ties']:.2%} near ties, log-probabilities {found['difference']:.3f} nats apart",
        f"at least {parity.min_agreement:.1%} must be one or the other, and the mean difference at most {parity.max_difference:g} nats",
    )


def _interval(estimate: dict[str, Any]) -> str:
    return f"{estimate['value']:.3f} [{estimate['low']:.3f}, {estimate['high']:.3f}]"
