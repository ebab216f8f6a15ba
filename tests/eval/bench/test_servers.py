"""Which servers are up when, with which weights and numbers of drafts.

Real servers run in test_evaluate.py.
"""

import json
from pathlib import Path

import pytest

from outrider.eval.bench import servers as module
from outrider.eval.bench.servers import Servers, covering
from outrider.eval.results.parts import CURRENT
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.speculator import Speculator
from tests.eagle3_head import write_eagle3_head
from tests.tiny import write_tiny_target

SPECULATORS = {"base": Speculator("mtp", Path("base")), "custom": Speculator("mtp", Path("custom"))}
TURNS = [("none", None), ("base", 2), ("custom", 3)]


class Recorder:
    """A server that notes what is done to it."""

    log: list[str]
    emptied: list[str]
    flags: dict[str, tuple[int | None, list[tuple[int, int, int]] | None]]

    def __init__(self, target, engine, drafting, *, log_path):
        self.name = log_path.stem.split("_", 2)[2]
        self.flags[self.name] = drafting and (drafting.k, drafting.k_per_batch_size)

    def start(self):
        self.log.append(f"{self.name} starts")

    def stop(self):
        self.log.append(f"{self.name} stops")

    def swap(self, directory):
        self.log.append(f"swap {directory}")
        self.reset_prefix_cache()

    def reset_prefix_cache(self):
        self.emptied.append(self.name)


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Calls that servers got, in order."""
    Recorder.log = []
    Recorder.emptied = []
    Recorder.flags = {}
    monkeypatch.setattr(module, "Server", Recorder)
    return Recorder.log


def opened(logs, side_by_side=True, speculators=SPECULATORS, **engine):
    serving = ServingConfig(engine=EngineConfig(**engine))
    return Servers(
        target=TargetConfig(),
        serving=serving,
        speculators=speculators,
        numbers=[1, 2, 3],
        log_dir=logs,
        side_by_side=side_by_side,
        warm_up=lambda server: Recorder.log.append(f"{server.name} warms up"),
    )


def ask(servers, *turns, mode="eager"):
    return [servers.server(mode, *turn).name for turn in turns]


def test_base_and_custom_take_turns_in_one_server_that_starts_once(log, tmp_path):
    with opened(tmp_path) as servers:
        assert servers.groups(TURNS) == [TURNS]
        asked = [TURNS[0], TURNS[1], TURNS[2], TURNS[1], (CURRENT, 1), TURNS[0]]
        names = ask(servers, *asked)
        assert names == ["none", *["speculating"] * 4, "none"]
        # A turn begins with an empty prefix cache, swapped or not.
        assert Recorder.emptied == names
        assert log == [
            *("none starts", "none warms up"),
            *("speculating starts", "speculating warms up", "swap custom", "swap base"),
        ]
        schedule = [(1, 1, 1), (2, 2, 2), (3, 8, 3)]
        assert Recorder.flags == {"none": None, "speculating": (3, schedule)}
        file = tmp_path / "drafts_eager_speculating.json"
        assert json.loads(file.read_text()) == 1
        ask(servers, ("custom", [(1, 4, 3), (5, 8, 0)]))
        assert json.loads(file.read_text()) == [[1, 4, 3], [5, 8, 0]]
        log.clear()
        ask(servers, TURNS[0], mode="compiled")
        assert sorted(log[:2]) == ["none stops", "speculating stops"]
    assert log[-1] == "none stops"


def test_one_at_a_time_each_start_comes_after_the_other_s_end(log, tmp_path):
    with opened(tmp_path, side_by_side=False) as servers:
        assert servers.groups(TURNS) == [TURNS[:1], TURNS[1:]]
        ask(servers, TURNS[0], TURNS[2], TURNS[1], TURNS[0])
    assert [line for line in log if "warms" not in line] == [
        *("none starts", "none stops", "speculating starts", "swap base"),
        *("speculating stops", "none starts", "none stops"),
    ]


@pytest.mark.parametrize(
    "engine", [{"data_parallel": 2}, {"extra_arguments": {"enable_eplb": True}}]
)
def test_without_changing_drafts_every_number_and_speculator_has_a_server(log, tmp_path, engine):
    """With data parallelism or EPLB."""
    turns = [("none", None), ("base", 2), ("custom", 3), (CURRENT, 1)]
    with opened(tmp_path, side_by_side=False, **engine) as servers:
        assert servers.groups(turns) == [[turn] for turn in turns]
        ask(servers, *turns)
        flags = {"base": (2, None), "custom": (3, None), CURRENT: (1, None)}
        assert Recorder.flags == {"none": None} | flags
    with opened(tmp_path, **engine) as servers:
        assert servers.groups(turns) == [turns]  # each in a server of its own, all up at once
        # Two numbers of one speculator are not.
        assert servers.groups([("custom", 1), ("custom", 2)]) == [[("custom", 1)], [("custom", 2)]]
        log.clear()
        ask(servers, ("custom", 1), ("custom", 2))
        assert [line for line in log if "warms" not in line] == [
            *("custom starts", "custom stops", "custom starts")
        ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target and heads: two of one shape, and one that drafts in parallel."""
    made = tmp_path_factory.mktemp("kinds")
    target = write_tiny_target(made / "target")
    write_eagle3_head(target, made / "one", layers=[1, 2])
    write_eagle3_head(target, made / "two", seed=1, layers=[1, 2])
    write_eagle3_head(target, made / "parallel", layers=[1, 2], pard_token=2)
    return made


@pytest.mark.parametrize(
    ("base", "groups"),
    [
        ("one", [["none"], ["base", "custom", CURRENT]]),
        ("target", [["none"], ["base", CURRENT], ["custom"]]),
        ("none", [["none", "base", CURRENT], ["custom"]]),
        ("ngram", [["none"], ["base", CURRENT], ["custom"]]),
    ],
)
def test_one_engine_serves_both_only_if_it_can_load_both(folder, base, groups):
    named = base if base in ("none", "ngram") else folder / base
    speculators = {"base": Speculator.named(named), "custom": Speculator.named(folder / "two")}
    servers = opened(folder / "logs", False, speculators)
    turns = [("none", None), ("base", 3), ("custom", 3), (CURRENT, 3)]
    assert [[variant for variant, _ in group] for group in servers.groups(turns)] == groups


def test_a_speculator_of_one_number_has_no_schedule(folder, log, tmp_path):
    speculators = {
        "base": Speculator("mtp", folder / "target"),
        "custom": Speculator("p_eagle", folder / "parallel"),
    }
    with opened(tmp_path, True, speculators) as servers:
        ask(servers, ("custom", 2))
        assert list(Recorder.flags.values()) == [(2, None)]


def test_vllm_s_schedule_has_every_number():
    from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup

    for numbers, seats in (([0, 2, 5], 8), ([1, 2, 3, 4, 5], 5), ([3], 1)):
        lookup = build_dynamic_sd_schedule_lookup(covering(numbers, seats), seats, max(numbers))
        assert set(lookup[1:]) == set(numbers)
