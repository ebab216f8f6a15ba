"""Each condition alone turns the verdict."""

import copy

import pytest

from outrider.eval.config import GateConfig, ParityConfig
from outrider.eval.gate import judge
from tests.eval.sample_results import sample_parity

BETTER = {"value": 1.4, "low": 1.3, "high": 1.5, "observations": 300, "clusters": 200}
UNSURE = {"value": 1.1, "low": 0.98, "high": 1.2, "observations": 300, "clusters": 200}
GOOD = {
    "replay": {"ratio": BETTER},
    "general": {"ratio": UNSURE},
    "served": {
        mode: {"speed": {"1": {"custom_over_base": BETTER}, "8": {"custom_over_base": UNSURE}}}
        for mode in ("eager", "compiled")
    },
    "verification": {
        "greedy": {"custom": {"responses": 24, "equal": 22, "near_ties": 2, "unexplained": 0}},
        "sampled_text": {"none": {"tail_share": 0.0015}, "custom": {"tail_share": 0.0016}},
        "same_text": {"custom": {"p_value": 0.4, "prompts": 24, "tokens": 5000}},
        "task": {
            "custom_minus_none": {
                "value": -0.01,
                "low": -0.07,
                "high": 0.06,
                "observations": 100,
                "variance": 0.1,
            }
        },
        "replay_vs_engine": {"base": 0.001, "custom": -0.002},
        "parity": {"base": sample_parity(), "custom": sample_parity()},
    },
}


def test_a_better_speculator_ships_and_the_reason_says_what_was_gained():
    verdict = judge(GOOD, GateConfig(), ParityConfig())
    assert verdict["verdict"] == "ship" and verdict["exit_code"] == 0
    assert "1.400 [1.300, 1.500]" in verdict["reason"] and "tokens/s" in verdict["reason"]


@pytest.mark.parametrize(
    ("ratio", "undecided"),
    [(UNSURE, True), (UNSURE | {"high": 0.99, "value": 0.985}, False), (BETTER, False)],
)
def test_a_speed_that_is_not_decided_says_what_would(ratio, undecided):
    results = copy.deepcopy(GOOD)
    results["served"]["eager"]["speed"]["1"]["custom_over_base"] = ratio
    checks = judge(results, GateConfig(), ParityConfig())["checks"]
    (speed,) = (
        check
        for check in checks
        if check["name"] == "tokens/s, custom / base, eager, concurrency 1"
    )
    assert ("more eval.repeats or eval.requests decide" in speed["demand"]) == undecided


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("replay", "ratio"), UNSURE, "acceptance length"),
        (("general", "ratio"), UNSURE | {"low": 0.94}, "acceptance length on general traffic"),
        (
            ("served", "compiled", "speed", "1", "custom_over_base"),
            UNSURE,
            "tokens/s, custom / base, compiled",
        ),
        (("verification", "greedy", "custom", "unexplained"), 1, "greedy outputs"),
        (("verification", "sampled_text", "custom", "tail_share"), 0.089, "sampled tokens"),
        (
            ("verification", "same_text", "custom", "p_value"),
            0.0005,
            "sampled responses have the same token frequencies",
        ),
        (
            ("verification", "task", "custom_minus_none", "low"),
            -0.11,
            "task accuracy with and without speculation",
        ),
        (
            ("verification", "task", "custom_minus_none", "high"),
            0.11,
            "task accuracy with and without speculation",
        ),
        (
            ("own_text",),
            {"own": False, "cause": "template", "text": "no <think>", "sequences": 9},
            "held-out text is",
        ),
        (("verification", "replay_vs_engine", "base"), -0.05, "replay against engine"),
        (
            ("verification", "parity", "custom"),
            sample_parity(agreement=0.97),
            "drafts of trainer and engine, custom",
        ),
        (
            ("verification", "parity", "base"),
            sample_parity(difference=0.2),
            "drafts of trainer and engine, base",
        ),
    ],
)
def test_one_failure_is_enough(path, value, named):
    results = copy.deepcopy(GOOD)
    place = results
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    verdict = judge(results, GateConfig(), ParityConfig())
    assert verdict["verdict"] == "do not ship" and verdict["exit_code"] == 2
    assert verdict["reason"].startswith(named)
    assert sum(not check["passed"] for check in verdict["checks"]) == 1


def test_too_few_responses_for_the_margin_are_told_how_many_would_do():
    results = copy.deepcopy(GOOD)
    results["verification"]["task"]["custom_minus_none"] |= {
        "low": -0.2,
        "high": 0.18,
        "observations": 12,
    }
    verdict = judge(results, GateConfig(), ParityConfig())
    assert (
        verdict["verdict"] == "do not ship"
        and "over 12 responses (at this spread about 32 could)" in verdict["reason"]
    )
    assert judge(results, GateConfig(max_task_loss=0.25), ParityConfig())["verdict"] == "ship"


def test_text_that_is_off_in_what_does_not_matter_here_is_told_and_ships():
    told = {
        "own": False,
        "cause": "retokenized",
        "text": "tokenizing it again gives other tokens",
        "sequences": 9,
    }
    verdict = judge(GOOD | {"own_text": told}, GateConfig(), ParityConfig())
    assert verdict["verdict"] == "ship"
    assert "tokenizing it again" in next(
        c["seen"] for c in verdict["checks"] if c["name"].startswith("held-out text")
    )
