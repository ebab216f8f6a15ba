"""Which servers are up when, and whose weights they hold; the servers themselves are tested in tests/serving and test_evaluate.py."""

from pathlib import Path

import pytest

from outrider.eval.bench import server_pool as module
from outrider.eval.bench.server_pool import open_fleet
from outrider.eval.config import EvalConfig
from outrider.serving.config import ServingConfig, TargetConfig
from outrider.serving.speculator import Speculator

recorded: dict[str, dict[str, str]] = {}
"""The environment in which each kind of server was started last."""

SPECULATORS = {"base": Path("base"), "custom": Path("custom")}


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the fleet asks of its servers, in order."""
    asked: list[str] = []

    class Recorder:
        def __init__(self, target, serving, speculator, k, *, log_path, port):
            kinds = {None: "plain", "mtp": "speculating"}
            kind = speculator and speculator.kind
            self.name = kinds.get(kind, kind)
            assert (k is None) == (speculator is None)
            asked.append(f"{self.name} at {port}")
            recorded[self.name] = serving.engine.environment

        def start(self):
            asked.append(f"{self.name} starts")

        def wait(self):
            asked.append(f"{self.name} ready")

        def stop(self):
            asked.append(f"{self.name} stops")

        def swap_drafter(self, directory):
            asked.append(f"swap {directory}")

    monkeypatch.setattr(module, "Server", Recorder)
    monkeypatch.setattr(module, "SETTLE_S", 0.0)
    return asked


def ask(fleet, *variants):
    return [fleet.server(variant).name for variant in variants]


def test_side_by_side_both_are_up_and_weights_change_only_when_another_speculator_is_asked_for(log):
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
    speculators = {"base": Path("base"), "custom": Speculator("ngram")}
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
    speculators = {"base": Path("base"), "custom": Speculator("none")}
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


def test_servers_start_anew_as_they_started_first(log):
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


def test_starts_are_spread_over_the_repeats():
    assert [EvalConfig(repeats=5, starts=2).starts_anew(repeat) for repeat in range(1, 5)] == [
        False,
        False,
        True,
        False,
    ]
    assert [EvalConfig(repeats=3, starts=3).starts_anew(repeat) for repeat in range(1, 3)] == [
        True,
        True,
    ]
    assert not any(EvalConfig(repeats=3).starts_anew(repeat) for repeat in range(1, 3))
    with pytest.raises(ValueError, match=r"eval\.starts = 4, but eval\.repeats = 3"):
        EvalConfig(repeats=3, starts=4)
