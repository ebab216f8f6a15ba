"""Which servers are up when, and whose weights they hold.

Real servers run in tests/serving, test_step_timing.py and test_evaluate.py.
"""

import json
from pathlib import Path

import pytest

from outrider.eval.bench import server_pool as module
from outrider.eval.bench.server_pool import ServerPool, covering, open_fleet
from outrider.eval.config import EvalConfig
from outrider.eval.results.parts import SAME_K
from outrider.serving.config import ServingConfig, TargetConfig
from outrider.serving.speculator import Speculator

ROTATING = [(1, 1, 1), (2, 2, 2), (3, 3, 3), (4, 8, 4)]
PLANNED = ("custom", "base", SAME_K, "none")

recorded: dict[str, dict[str, str]] = {}
"""Environment in which each kind of server was started last."""

drafts: dict[str, tuple[int | None, list[tuple[int, int, int]] | None]] = {}
"""k and schedule with which each kind of server was started last."""

emptied: list[str] = []
"""Servers whose prefix cache was emptied, in order."""

SPECULATORS = {"base": Speculator("mtp", Path("base")), "custom": Speculator("mtp", Path("custom"))}


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls that the fleet makes to its servers, in order."""
    calls: list[str] = []

    class Recorder:
        def __init__(
            self, target, serving, speculator, k, *, log_path, port, k_per_batch_size=None
        ):
            kinds = {None: "plain", "mtp": "speculating"}
            kind = speculator and speculator.kind
            self.name = kinds.get(kind, kind)
            assert (k is None) == (speculator is None)
            calls.append(f"{self.name} at {port}")
            drafts[self.name] = (k, k_per_batch_size)
            recorded[self.name] = serving.engine.environment

        def start(self):
            calls.append(f"{self.name} starts")

        def wait(self):
            calls.append(f"{self.name} ready")

        def stop(self):
            calls.append(f"{self.name} stops")

        def swap(self, directory):
            calls.append(f"swap {directory}")
            self.reset_prefix_cache()

        def reset_prefix_cache(self):
            emptied.append(self.name)

    monkeypatch.setattr(module, "Server", Recorder)
    monkeypatch.setattr(module, "runs_on_cpu", lambda: True)
    return calls


def both(k):
    return {"base": k, "custom": k}


def set_drafts(directory):
    """The numbers of drafts that were set last in the speculating server."""
    return json.loads((directory / "steps_eager_speculating.drafts").read_text())


def ask(fleet, *variants):
    return [fleet.server(variant).name for variant in variants]


def test_side_by_side_both_are_up_and_weights_change_only_for_another_speculator(log):
    serving = ServingConfig(port=8100)
    with open_fleet(TargetConfig(), serving, SPECULATORS, 3, "eager", Path("logs")) as fleet:
        assert log == [
            "plain at 8100",
            "plain starts",
            "speculating at 8101",
            "speculating starts",
            "plain ready",
            "speculating ready",
        ]
        log.clear()
        assert fleet.groups == (("none", "base", "custom"),)
        assert ask(fleet, "base", "none", "base", "custom", "none", "custom", "base") == [
            "speculating" if variant != "none" else "plain"
            for variant in ("base", "none", "base", "custom", "none", "custom", "base")
        ]
        assert log == ["swap custom", "swap base"]
        assert [fleet.is_fresh(variant) for variant in ("none", "base", "custom")] == [
            True,
            True,
            False,
        ]
        log.clear()
    assert sorted(log) == ["plain stops", "speculating stops"]


@pytest.mark.parametrize("custom", [Path("custom"), Path("base")], ids=["exchanged", "same"])
def test_every_turn_begins_with_an_empty_prefix_cache(log, tmp_path, custom):
    speculators = SPECULATORS | {"custom": Speculator("mtp", custom)}
    with open_fleet(TargetConfig(), ServingConfig(), speculators, 3, "eager", tmp_path) as fleet:
        emptied.clear()
        turns = ask(fleet, "base", "base", "custom", "custom", "none", "none", "base")
    assert emptied == turns


def test_one_at_a_time_each_start_comes_after_the_other_s_end_and_loads_the_base(log):
    with open_fleet(
        TargetConfig(), ServingConfig(), SPECULATORS, 3, "eager", Path("logs"), False
    ) as fleet:
        assert log == []
        assert fleet.groups == (("none",), ("base", "custom"))
        ask(fleet, "none", "base", "custom", "none", "base")
    assert [line for line in log if " at " not in line] == [
        *("plain starts", "plain ready", "plain stops"),
        *("speculating starts", "speculating ready", "swap custom", "speculating stops"),
        *("plain starts", "plain ready", "plain stops"),
        *("speculating starts", "speculating ready", "speculating stops"),
    ]


def test_a_speculator_whose_weights_cannot_be_exchanged_has_a_server_of_its_own(log):
    speculators = {"base": SPECULATORS["base"], "custom": Speculator("ngram")}
    with open_fleet(
        TargetConfig(), ServingConfig(port=8100), speculators, 3, "eager", Path("logs")
    ) as fleet:
        assert log[::2][:3] == ["plain at 8100", "speculating at 8101", "ngram at 8102"]
        assert fleet.groups == (("none", "base", "custom"),)
        log.clear()
        assert ask(fleet, "base", "custom", "base", "none") == [
            "speculating",
            "ngram",
            "speculating",
            "plain",
        ]
        assert log == []
        assert [fleet.is_fresh(variant) for variant in ("none", "base", "custom")] == [
            True,
            True,
            True,
        ]
    with open_fleet(
        TargetConfig(), ServingConfig(), speculators, 3, "eager", Path("logs"), False
    ) as fleet:
        assert fleet.groups == (("none",), ("base",), ("custom",))


def test_no_speculation_as_the_custom_one_is_the_server_without(log):
    speculators = {"base": SPECULATORS["base"], "custom": Speculator("none")}
    with open_fleet(
        TargetConfig(), ServingConfig(), speculators, 3, "eager", Path("logs"), False
    ) as fleet:
        assert fleet.groups == (("none", "custom"), ("base",))
        assert ask(fleet, "none", "custom", "base") == ["plain", "plain", "speculating"]
    assert not any("swap" in line for line in log)


def test_every_server_writes_its_steps_down_in_a_file_of_its_own(log, tmp_path):
    with open_fleet(TargetConfig(), ServingConfig(), SPECULATORS, 3, "eager", tmp_path) as fleet:
        plain, speculating = (
            Path(recorded[name]["OUTRIDER_RECORD_STEPS"]) for name in ("plain", "speculating")
        )
        assert plain != speculating and plain.parent == speculating.parent == tmp_path
        assert fleet.new_steps("none") == []
        speculating.write_text("[0.5, 1, 3, 4, 0, 0, true]\n")
        assert fleet.new_steps("none") == [] and [
            step.seconds for step in fleet.new_steps("base")
        ] == [0.5]
        speculating.write_text(speculating.read_text() + "[0.25, 1, 3, 4, 0, 0, true]\n")
        fleet.restart()  # goes on in the same file
        assert [step.seconds for step in fleet.new_steps("custom")] == [0.25]


def test_a_restart_starts_servers_as_the_first_start_did(log):
    with open_fleet(
        TargetConfig(), ServingConfig(), SPECULATORS, 3, "eager", Path("logs")
    ) as fleet:
        fleet.server("custom")
        first = [line for line in log if not line.startswith("swap")]
        log.clear()
        fleet.restart()
        assert log[:2] == ["speculating stops", "plain stops"] and log[2:] == first
        assert fleet.is_fresh("none") and fleet.is_fresh("custom")
        log.clear()
        ask(fleet, "base", "custom")
        assert log == ["swap custom"]  # a fresh server holds the base


@pytest.fixture
def pool(log, tmp_path):
    with ServerPool(TargetConfig(), ServingConfig(), SPECULATORS, 4, tmp_path) as opened:
        yield opened


def test_the_pool_starts_servers_once_for_timing_and_for_blocks(log, pool, tmp_path):
    fleet = pool.fleet("eager")
    ask(fleet, "none", "custom")
    assert (drafts["plain"], drafts["speculating"]) == ((None, None), (4, ROTATING))
    log.clear()
    assert pool.fleet("eager", both(4)) is fleet
    ask(fleet, "custom", "none")
    assert log == [] and set_drafts(tmp_path) == [4]


def test_each_variant_of_an_engine_drafts_its_own_number(log, pool, tmp_path):
    ask(pool.fleet("eager"), "none", "custom")
    log.clear()
    fleet = pool.fleet("eager", {"base": 2, "custom": 3, SAME_K: 3})
    assert fleet.extras == (SAME_K,) and fleet.groups == (("none", "base", "custom"),)
    set_ = {variant: [*ask(fleet, variant), *set_drafts(tmp_path)] for variant in PLANNED}
    assert set_ == {
        "custom": ["speculating", 3],
        "base": ["speculating", 2],
        SAME_K: ["speculating", 3],
        "none": ["plain", 3],
    }
    assert log == ["swap base"]  # no server starts again, and base's weights are loaded once
    assert [fleet.drafts(variant) for variant in PLANNED] == [3, 2, 3, None]
    assert fleet.engines(PLANNED) == [["custom", "base", SAME_K], ["none"]]
    pool.fleet("eager", {"base": 1, "custom": [(1, 4, 4), (5, 8, 0)]})
    ask(fleet, "custom")
    assert log == ["swap base", "swap custom"] and set_drafts(tmp_path) == [[[1, 4, 4], [5, 8, 0]]]


def test_on_a_gpu_a_server_starts_with_the_numbers_that_it_drafts(log, pool, monkeypatch):
    monkeypatch.setattr(module, "runs_on_cpu", lambda: False)
    ask(pool.fleet("eager"), "none", "custom")
    fleet = pool.fleet("eager", {"base": 2, "custom": 4})
    assert log[-1] == "speculating stops"
    ask(fleet, "custom")
    assert drafts["speculating"] == (4, [(1, 1, 2), (2, 8, 4)])
    pool.fleet("eager", {"base": 4, "custom": 2})
    assert log[-1] == "swap custom"  # the same numbers: it stays up
    ask(pool.fleet("eager", both(3)), "custom")
    assert drafts["speculating"] == (3, None)


def test_vllm_s_schedule_has_every_number():
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    for numbers, seats in (([0, 2, 5], 8), ([1, 2, 3, 4, 5], 5), ([3], 1)):
        lookup = build_dynamic_sd_schedule_lookup(covering(numbers, seats), seats, max(numbers))
        assert set(lookup[1:]) == set(numbers)


def test_another_mode_ends_the_servers_of_the_first(log, pool):
    ask(pool.fleet("eager"), "none")
    log.clear()
    ask(pool.fleet("compiled", both(2)), "custom")
    assert sorted(log[:2]) == ["plain stops", "speculating stops"]
    assert drafts["speculating"] == (2, None)


def test_nothing_starts_in_the_background_where_one_server_fits(log, tmp_path):
    with ServerPool(TargetConfig(), ServingConfig(), SPECULATORS, 4, tmp_path, False) as pool:
        fleet = pool.fleet("eager")
        assert log == []
        ask(fleet, "none", "custom")
    assert log[-1] == "speculating stops"


def test_starts_are_spread_over_the_repeats():
    assert [EvalConfig(repeats=5, starts=2).restarts_before(repeat) for repeat in range(1, 5)] == [
        False,
        False,
        True,
        False,
    ]
    assert [EvalConfig(repeats=3, starts=3).restarts_before(repeat) for repeat in range(1, 3)] == [
        True,
        True,
    ]
    assert not any(EvalConfig(repeats=3).restarts_before(repeat) for repeat in range(1, 3))
    with pytest.raises(ValueError, match=r"eval\.starts = 4, but eval\.repeats = 3"):
        EvalConfig(repeats=3, starts=4)
