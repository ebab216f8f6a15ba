"""Each condition alone changes the verdict."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from outrider.eval.config import GateConfig
from outrider.eval.gate import LEAST_GREEDY_P, conclude_checks, judge_findings
from outrider.eval.lossless.equal_text import compare_greedy, excess
from outrider.eval.replay.heldout_replay import on_policy
from outrider.eval.replay.sums import compare_replays
from outrider.eval.results.report import Check, Findings, Report, Verdict
from tests.data.on_policy.test_quarantine import store_of
from tests.data.toy_target import SEQUENCES, VOCAB, ToyTarget
from tests.eval.sample_results import sample_findings, sample_kinds, sample_replay

BETTER = {"value": 1.4, "low": 1.3, "high": 1.5, "observations": 300, "clusters": 200}
UNSURE = {"value": 1.1, "low": 0.98, "high": 1.2, "observations": 300, "clusters": 200}
SLOWER = UNSURE | {"value": 0.955, "low": 0.95, "high": 0.96}
LOSES = SLOWER | {"low": 0.9, "high": 0.94}


def good() -> dict[str, Any]:
    """The findings of a speculator that ships, as JSON."""
    findings = sample_findings().model_dump(mode="json")
    findings["replay"]["ratio"] = BETTER
    findings["general"] = copy.deepcopy(findings["replay"]) | {"ratio": UNSURE}
    for served in findings["served"].values():
        served["speed"]["1"]["custom_over_base"] = BETTER
        served["speed"]["1"]["lookup"]["custom_over"] = BETTER
        for size in ("4", "8"):
            served["speed"][size]["custom_over_base"] = UNSURE
        for row in served["speed"].values():
            row["custom_over_none"] = BETTER
    findings["own_text"] = None
    verification = findings["verification"]
    verification["task"]["custom_minus_none"] |= {
        "value": -0.01,
        "low": -0.07,
        "high": 0.06,
        "observations": 100,
        "variance": 0.1,
    }
    for found in verification["modes"].values():
        found["replay_vs_engine"] |= {"base": 0.001, "custom": -0.002}
    return findings


def verdict_of(findings: dict[str, Any], gate: GateConfig | None = None) -> Verdict:
    for name in ("replay", "general"):
        if findings[name]:
            findings[name]["ratio"] = {"over": "200 sessions"} | findings[name]["ratio"]
    return judge_findings(Findings.model_validate(findings), gate or GateConfig())


@pytest.mark.parametrize(
    ("ratio", "outcome", "verdict"),
    [
        (UNSURE, "undecided", "undecided"),
        (SLOWER, "failed", "do not ship"),
        (BETTER, "passed", "ship"),
    ],
)
def test_a_speed_that_is_not_decided_says_what_would(ratio, outcome, verdict):
    findings = good()
    findings["served"]["eager"]["speed"]["1"]["custom_over_base"] = ratio
    name = "tokens/s, custom / base, eager, concurrency 1"
    judged = verdict_of(findings)
    (speed,) = (check for check in judged.checks if check.name == name)
    assert speed.outcome == outcome and judged.verdict == verdict
    # The interval is 0.102 wide on either side of a log ratio of 0.095.
    what_would = "; undecided: at 1, about 4 eval.repeats would decide it (3 were measured)"
    assert (what_would in speed.demand) == (outcome == "undecided")


@pytest.mark.parametrize(
    ("ratio", "seen", "demand"),
    [
        (
            BETTER | {"low": None, "high": None, "clusters": 3, "over": "3 sessions"},
            "1.400, undecided: 3 sessions, at least 5 needed",
            "must lie above 1",
        ),
        # log(1.2 / 0.98) / 2 = 0.101, log 1.1 = 0.095: (0.101 / 0.095)^2 x 200 = 226.
        (
            UNSURE,
            "1.100 [0.980, 1.200] over 200 sessions",
            "(undecided: about 226 would be needed)",
        ),
        (UNSURE | {"value": 0.99}, "over 200 sessions", "must lie above 1"),
    ],
)
def test_too_few_sessions_give_no_verdict(ratio, seen, demand):
    findings = good()
    findings["replay"]["ratio"] = ratio
    judged = verdict_of(findings)
    (check, *_) = judged.checks
    assert (judged.verdict, check.outcome) == ("undecided", "undecided")
    assert check.seen.endswith(seen) and check.demand.endswith(demand)
    assert sum(check.outcome != "passed" for check in judged.checks) == 1


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [(1.0, 1.2, "undecided"), (0.8, 1.0, "failed"), (1.0, 1.0, "failed"), (1.01, 1.2, "passed")],
)
def test_an_interval_that_ends_at_the_bound_is_judged_alike_everywhere(low, high, outcome):
    findings = good()
    ratio = BETTER | {"value": low, "low": low, "high": high}
    findings["replay"]["ratio"] = ratio
    findings["served"]["eager"]["speed"]["1"]["custom_over_base"] = ratio
    found = {check.name: check.outcome for check in verdict_of(findings).checks}
    assert found["acceptance length, custom / base, both at K = 3"] == outcome
    assert found["tokens/s, custom / base, eager, concurrency 1"] == outcome
    # Not to be slower than no speculation by more than 3 % is another demand.
    findings["served"]["eager"]["speed"]["1"]["custom_over_none"] = ratio
    (none,) = (
        check
        for check in verdict_of(findings).checks
        if check.name == "tokens/s, custom / none, eager"
    )
    assert none.outcome == ("passed" if low > 0.97 else "undecided")


@pytest.mark.parametrize(
    ("ratio", "verdict", "words"),
    [
        (BETTER, "ship", ""),
        (UNSURE, "undecided", "is as fast"),
        (LOSES, "do not ship", "is faster"),
    ],
)
def test_a_head_that_lookup_beats_does_not_ship(ratio, verdict, words):
    findings = good()
    row = findings["served"]["eager"]["speed"]["1"]
    row["lookup"]["custom_over"] = ratio
    row["lookup"]["block"]["tokens_per_s"] = 1000.0
    judged = verdict_of(findings)
    assert judged.verdict == verdict
    results = Report(**findings | {"cost": None, "verdict": judged})
    assert words in results.lookup_line and bool(words) == bool(results.lookup_line)
    # Where base is faster than both, lookup is not what to ship.
    row["lookup"]["block"]["tokens_per_s"] = 1.0
    assert not Report(**findings | {"cost": None, "verdict": judged}).lookup_line


def test_a_gain_in_one_user_s_traffic_does_not_pass():
    """One user has most sessions, four others one each; custom gains with the first alone."""
    base = sample_replay(0.6)
    custom = sample_replay(0.8)
    outcomes = []
    users = ["easy" if int(session) < 56 else session for session in base.sessions]
    hard_R = np.array(users) != "easy"
    custom.steps_RK[hard_R] = base.steps_RK[hard_R]
    for owners in ([""] * len(users), users):
        findings = good()
        found = compare_replays(replace(base, users=owners), custom, 3)["ratio"]
        findings["replay"]["ratio"] = found.model_dump()
        outcomes.append(verdict_of(findings).checks[0].outcome)
    assert outcomes == ["passed", "undecided"]
    assert found.over.endswith("with the wider interval over users")


def test_a_free_rule_need_not_accept_more_than_base_to_ship():
    findings = good()
    findings["replay"]["ratio"] = LOSES
    assert verdict_of(findings).verdict == "do not ship"
    findings["speculator"] = {"kind": "ngram", "weights_sha256": None}
    judged = verdict_of(findings)
    assert judged.verdict == "ship"
    kinds = sample_kinds(ngram=0.8)
    results = Report(**findings | {"cost": None, "verdict": judged, "kinds": kinds})
    assert [each.kind for each in kinds][:2] == ["ngram", "eagle3"]
    words = "no trained kind is shown to be faster on validation (eagle3 / lookup 0.8"
    assert words in results.lookup_line


def greedy_of(with_speculation: list[float], alone: list[float]) -> Verdict:
    """The verdict where the first of 24 greedy responses differ by so many nats each."""
    found, control = (
        compare_greedy(
            [[1, 2]] * 24,
            [[1, 9]] * len(gaps) + [[1, 2]] * (24 - len(gaps)),
            lambda response, *_, gaps=gaps: gaps[response],
            GateConfig().near_tie_nats,
        )
        for gaps in (with_speculation, alone)
    )
    findings = good()
    added = excess(found, control)
    own = findings["verification"]["modes"]["compiled"]
    own["greedy"]["custom"] = found.model_dump()
    own |= {"control": control.model_dump(), "excess": added.model_dump()}
    return verdict_of(findings)


@pytest.mark.parametrize(
    ("with_speculation", "alone", "outcome"),
    [
        ([], [], "passed"),
        ([0.1] * 6, [], "passed"),
        ([0.1] * 8, [], "failed"),
        ([0.1] * 24, [], "failed"),  # an engine with relaxed acceptance
        ([0.1] * 24, [0.1] * 18, "passed"),
        ([0.49], [], "undecided"),  # four steps of bf16 are no near tie
        ([3.0] * 3, [], "undecided"),
        ([3.0] * 3, [3.0], "passed"),
        ([3.0] * 8, [], "failed"),
        ([3.0] * 12, [0.1] * 12, "failed"),
    ],
)
def test_greedy_differences_count_above_those_without_speculation(with_speculation, alone, outcome):
    judged = greedy_of(with_speculation, alone)
    (check,) = (
        each
        for each in judged.checks
        if each.name.startswith("greedy outputs") and each.name.endswith("compiled")
    )
    assert check.outcome == outcome and "without speculation in other batches" in check.seen
    advice = "(undecided: raise eval.verification_requests)"
    assert (advice in check.demand) == (outcome == "undecided")
    assert sum(each.outcome != "passed" for each in judged.checks) == (outcome != "passed")


@pytest.mark.parametrize("share", [0.02, 0.2, 0.5, 0.9])
def test_an_engine_that_differs_no_more_than_its_control_passes(share):
    random = np.random.default_rng(0)
    passed = 0
    for _ in range(300):
        counts = random.binomial(24, share, 2)
        found, control = (
            compare_greedy(
                [[1, 2]] * 24, [[1, 2 + 7 * differs] for differs in marks], lambda *_: 0.1, 0.125
            )
            for marks in (random.permutation(24) < count for count in counts)
        )
        passed += excess(found, control).p_value >= LEAST_GREEDY_P
    assert passed / 300 >= 0.99


@pytest.mark.parametrize(
    ("outcomes", "verdict", "reason"),
    [
        (["passed", "undecided"], "undecided", "b: seen, but must"),
        (["undecided", "failed"], "do not ship", "b: seen, but must"),
        (["undecided", "undecided"], "undecided", "a: seen, but must (and 1 more)"),
        (["passed", "passed"], "ship", "a: seen; b: seen"),
        (["passed", "passed", "passed"], "ship", "a: seen; b: seen"),  # the two gains
    ],
)
def test_one_failed_check_outweighs_an_undecided_one(outcomes, verdict, reason):
    checks = [
        Check(name=name, outcome=outcome, seen="seen", demand="must")
        for name, outcome in zip("abc", outcomes, strict=False)
    ]
    found = conclude_checks(checks, {"replay": "no unroll"})
    assert (found.verdict, found.checks) == (verdict, checks)
    assert found.reason == f"{reason}. Not checked: replay (no unroll)"


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("replay", "ratio"), SLOWER, "acceptance length, custom / base, both at K = 3"),
        (
            ("served", "compiled", "speed", "8", "custom_over_base"),
            SLOWER,
            "tokens/s, custom / base, compiled, other concurrencies",
        ),
        (
            ("served", "compiled", "speed", "8", "custom_over_none"),
            SLOWER,
            "tokens/s, custom / none, compiled",
        ),
        (
            ("general", "ratio"),
            SLOWER | {"low": 0.9, "high": 0.94},
            "acceptance length on general traffic",
        ),
        (
            ("served", "compiled", "speed", "1", "custom_over_base"),
            SLOWER,
            "tokens/s, custom / base, compiled",
        ),
        (
            ("verification", "modes", "compiled", "excess"),
            {"value": 0.3, "p_value": 0.005},
            "greedy outputs with and without speculation, compiled",
        ),
        (
            ("verification", "modes", "compiled", "tail_share", "custom"),
            0.089,
            "sampled tokens",
        ),
        (
            ("verification", "modes", "compiled", "same_text", "p_value"),
            0.0005,
            "sampled responses have the same token frequencies",
        ),
        (
            ("verification", "task", "custom_minus_none", "high"),
            -0.11,
            "task accuracy with and without speculation",
        ),
        (
            ("own_text",),
            {"cause": "template", "text": "no <think>", "sequences": 9, "not_checked": 0},
            "held-out text is on-policy",
        ),
        (
            ("verification", "modes", "compiled", "replay_vs_engine", "base"),
            -0.05,
            "replay against engine",
        ),
    ],
)
def test_one_failure_is_enough(path, value, named):
    findings = good()
    place = findings
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    verdict = verdict_of(findings)
    assert verdict.verdict == "do not ship"
    assert verdict.reason.startswith(named)
    assert sum(check.outcome == "failed" for check in verdict.checks) == 1


@pytest.mark.parametrize(
    ("path", "at_the_limit", "past_it", "name"),
    [
        (
            ("verification", "modes", "compiled", "excess", "p_value"),
            0.01,
            0.0099,
            "greedy outputs with and without speculation, compiled",
        ),
        (
            ("verification", "modes", "compiled", "tail_share", "custom"),
            0.01,
            0.0101,
            "sampled tokens are likely under the target, compiled",
        ),
        (
            ("verification", "modes", "compiled", "same_text", "p_value"),
            0.001,
            0.00099,
            "sampled responses have the same token frequencies, compiled",
        ),
    ],
)
def test_a_value_at_the_limit_of_a_check_passes(path, at_the_limit, past_it, name):
    """Demands: p at least, at most more, p at least."""
    findings = good()
    findings["verification"]["modes"]["compiled"]["tail_share"]["none"] = 0.0
    holder = findings
    for key in path[:-1]:
        holder = holder[key]
    outcomes = []
    for value in (at_the_limit, past_it):
        holder[path[-1]] = value
        checks = {check.name: check.outcome for check in verdict_of(findings).checks}
        outcomes.append(checks[name])
    assert outcomes == ["passed", "failed"]


@pytest.mark.parametrize(
    ("low", "high", "outcome"),
    [
        (-0.09, 0.09, "passed"),
        (-0.1, 0.09, "undecided"),  # must lie between the margins, which are not between
        (-0.09, 0.1, "undecided"),
        (0.1, 0.3, "failed"),
        (-0.3, -0.1, "failed"),
    ],
)
def test_a_task_interval_is_judged_by_both_margins(low, high, outcome):
    findings = good()
    task = findings["verification"]["task"]["custom_minus_none"]
    task |= {"value": (low + high) / 2, "low": low, "high": high}
    judged = verdict_of(findings, GateConfig(max_task_loss=0.1))
    (check,) = (check for check in judged.checks if check.name.startswith("task accuracy"))
    assert check.outcome == outcome


def test_replay_is_allowed_what_the_engine_differs_from_itself_and_a_margin():
    findings = good()
    findings["verification"]["modes"]["eager"]["replay_vs_engine"] |= {
        "custom": 0.045,
        "control": 0.03,
    }
    assert verdict_of(findings).verdict == "do not ship"
    assert (
        verdict_of(findings, GateConfig().model_copy(update={"replay_margin": 0.02})).verdict
        == "ship"
    )
    findings["verification"]["modes"]["eager"]["replay_vs_engine"] |= {"control": 0.036}
    name = "replay against engine, eager"
    (check,) = (each for each in verdict_of(findings).checks if each.name == name)
    assert check.outcome == "passed" and "the engine against itself 3.60%" in check.seen
    assert "both must lie within 0.046, the larger of 0.02" in check.demand
    # A noisy engine does not pass anything.
    findings["verification"]["modes"]["eager"]["replay_vs_engine"] |= {
        "custom": 0.07,
        "control": 0.2,
    }
    judged = verdict_of(findings)
    assert judged.verdict == "undecided" and "own differences are larger" in judged.reason


def test_too_few_responses_for_the_margin_are_undecided():
    findings = good()
    task = findings["verification"]["task"]["custom_minus_none"]
    task |= {"value": 0.0, "low": -0.2, "high": 0.18, "observations": 12}
    verdict = verdict_of(findings)
    assert verdict.verdict == "undecided"
    assert "(undecided: about 32 responses would be needed)" in verdict.reason
    assert verdict_of(findings, GateConfig(max_task_loss=0.25)).verdict == "ship"
    task |= {"value": -0.12, "high": -0.05}
    assert "(undecided: it is too large)" in verdict_of(findings).reason


def test_heldout_text_that_is_not_the_target_s_is_refused_with_its_cause(tmp_path):
    toy = ToyTarget()
    text = toy.evidence((toy.drawn() + 1) % VOCAB)
    found = on_policy(*store_of({"held-out": text}, tmp_path))
    assert (found.cause, found.sequences) == ("scrambled", SEQUENCES)
    verdict = verdict_of(good() | {"own_text": found.model_dump()})
    assert verdict.verdict == "do not ship" and found.text in verdict.reason


def test_heldout_text_with_hard_labels_is_not_checked_and_ships(tmp_path):
    toy = ToyTarget()
    store, table = store_of({"held-out": toy.evidence((toy.drawn() + 1) % VOCAB)}, tmp_path)
    table = table.remove_columns("constraint").add_column("constraint", ["grammar"] * len(table))
    found = on_policy(store, table)
    assert (found.cause, found.sequences, found.not_checked) == ("not_checked", 0, SEQUENCES)
    verdict = verdict_of(good() | {"own_text": found.model_dump()})
    (check,) = [check for check in verdict.checks if check.name.endswith("on-policy")]
    assert verdict.verdict == "ship" and f"{SEQUENCES} not checked" in check.seen


def test_off_policy_text_of_a_harmless_cause_is_reported_and_ships():
    found = {
        "cause": "retokenized",
        "text": "tokenizing it again gives other tokens",
        "sequences": 9,
        "not_checked": 0,
    }
    verdict = verdict_of(good() | {"own_text": found})
    assert verdict.verdict == "ship"
    (check,) = (each for each in verdict.checks if each.name.startswith("held-out text"))
    assert "tokenizing it again" in check.seen


def speed_check(findings: dict[str, Any], name: str) -> Check:
    (found,) = (check for check in verdict_of(findings).checks if check.name == name)
    return found


@pytest.mark.parametrize(
    ("versus", "name"),
    [
        ("base", "tokens/s, custom / base, eager, other concurrencies"),
        ("none", "tokens/s, custom / none, eager"),
    ],
)
def test_lack_of_evidence_that_custom_is_not_slower_does_not_ship(versus, name):
    findings = good()
    assert speed_check(findings, name).outcome == "passed"
    row = findings["served"]["eager"]["speed"]["8"]
    row[f"custom_over_{versus}"] = UNSURE | {"low": 0.96}
    check = speed_check(findings, name)
    assert check.outcome == verdict_of(findings).verdict == "undecided"
    assert "1.100 [0.960, 1.200] at 8" in check.seen
    key = "eval.repeats" if versus == "base" else "eval.starts and as many eval.repeats"
    what_decides = f"must lie above 0.97; undecided: at 8, about 3 {key} would decide"
    assert what_decides in check.demand
    row[f"custom_over_{versus}"] = UNSURE | {"value": 0.97, "low": 0.9}
    assert f"more than 1,000 {key}" in speed_check(findings, name).demand


@pytest.mark.parametrize(
    ("value", "served", "outcome"),
    [(1.4, 1.4, "passed"), (1.4, 1.1, "undecided"), (0.8, 0.8, "failed"), (0.8, 1.1, "undecided")],
)
def test_a_model_that_the_server_contradicts_decides_nothing(value, served, outcome):
    findings = good()
    row = findings["served"]["eager"]["speed"]["1"]
    row["custom_over_base"] = {
        "value": value,
        "low": value - 0.05,
        "high": value + 0.05,
        "estimator": "replay",
        "measured": {"value": served, "low": served - 0.1, "high": served + 0.1},
        "expected": value,
        "agrees": value == served,
    }
    check = speed_check(findings, "tokens/s, custom / base, eager, concurrency 1")
    assert check.outcome == outcome
    assert ("model and server disagree" in check.demand) == (outcome == "undecided")


def test_two_engines_that_were_started_twice_are_undecided():
    findings = good()
    row = findings["served"]["eager"]["speed"]["1"]
    row["starts"] = 2
    name = "tokens/s, custom / base, eager, concurrency 1"
    check = speed_check(findings, name)
    assert check.outcome == verdict_of(findings).verdict == "undecided"
    assert "started 2 times" in check.demand and "at least 3 are needed" in check.demand
    row["starts"] = 3
    assert verdict_of(findings).verdict == "ship"
    row["custom_over_base"] = BETTER | {"estimator": "replay"}
    seen = "1.400 [1.300, 1.500] for whole responses by replay at 1, 1.400 corrected for selection"
    assert speed_check(findings, name).seen == seen


def test_custom_must_beat_what_runs_today_too():
    findings = good()
    findings["settings"]["current_k"] = 1
    row = findings["served"]["eager"]["speed"]["1"]
    row["current"] = {"block": row["base"], "custom_over": BETTER}
    assert verdict_of(findings).verdict == "ship"
    row["current"]["custom_over"] = SLOWER
    verdict = verdict_of(findings)
    assert verdict.verdict == "do not ship"
    name = "tokens/s, custom / base at eval.current_k, eager, concurrency 1"
    assert verdict.reason.startswith(name)


def test_the_main_concurrency_is_the_recipe_s():
    findings = good()
    findings["choice"]["main_concurrency"] = 8
    assert verdict_of(findings).verdict == "undecided"
    for served in findings["served"].values():
        served["speed"]["8"]["custom_over_base"] = BETTER
    assert verdict_of(findings).verdict == "ship"


@pytest.mark.parametrize("by_batch_size", [False, True])
def test_slower_than_none_anywhere_does_not_ship(by_batch_size):
    findings = good() | {"by_batch_size": by_batch_size}
    for served in findings["served"].values():
        served["speed"]["8"]["custom_over_none"] = SLOWER
    found = verdict_of(findings)
    assert found.verdict == "do not ship"
    assert ("export.k_per_batch_size: true" in found.reason) == (not by_batch_size)
