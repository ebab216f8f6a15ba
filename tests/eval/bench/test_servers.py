"""Which servers are up when, with which weights and numbers of drafts.

Real servers run in test_evaluate.py.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from outrider.common.errors import OutriderError
from outrider.eval.bench import servers as module
from outrider.eval.bench.servers import OVERHEAD, Servers, covering_schedule, weight_bytes
from outrider.eval.results.parts import CURRENT
from outrider.pipeline.recipe.load import load_recipe
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

    def launch(self):
        self.log.append(f"{self.name} starts")

    def wait_until_healthy(self):
        self.log.append(f"{self.name} is healthy")

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
        numbers=dict.fromkeys(speculators, (1, 2, 3)),
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
            *("none starts", "none is healthy", "none warms up"),
            *("speculating starts", "speculating is healthy", "speculating warms up"),
            *("swap custom", "swap base"),
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
        log.append("prepared")
        servers.prepare("eager", TURNS)
    assert [line for line in log if "warms" not in line and "healthy" not in line] == [
        *("none starts", "none stops", "speculating starts", "swap base"),
        *("speculating stops", "none starts", "prepared", "none stops"),
    ]


@pytest.mark.parametrize("gpu", [None, 80 * 10**9])
def test_servers_start_together_but_on_gpus(monkeypatch, log, tmp_path, gpu):
    """On a GPU, a starting engine measures the memory that is free."""
    monkeypatch.setattr(module, "gpu_memory", lambda gpus: gpu)
    monkeypatch.setattr(module, "weight_bytes", lambda directory: 0)
    with opened(tmp_path, kv_cache_gb=1.0, gpu_memory_utilization=0.2) as servers:
        servers.prepare("eager", TURNS)
        prepared = [
            *("none starts", "speculating starts"),
            *("none is healthy", "none warms up"),
            *("speculating is healthy", "speculating warms up"),
        ]
        assert log == ([] if gpu else prepared)
        ask(servers, *TURNS)
        assert sorted(log) == sorted([*prepared, "swap custom"])
        log.clear()
        servers.prepare("eager", TURNS)
        assert not log  # all run
        servers.stop("none")
        servers.prepare("eager", TURNS)
        assert ("none starts" in log) == (gpu is None)


def test_a_server_that_fails_ends_those_that_started_with_it(monkeypatch, log, tmp_path):
    def fails(self):
        raise OutriderError(self.name)

    monkeypatch.setattr(Recorder, "wait_until_healthy", fails)
    with pytest.raises(OutriderError, match="none"), opened(tmp_path) as servers:
        servers.prepare("eager", TURNS)
    assert sorted(log[-2:]) == ["none stops", "speculating stops"]


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
        assert [line for line in log if "warms" not in line and "healthy" not in line] == [
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
    speculators = {
        "base": Speculator.from_name(named),
        "custom": Speculator.from_name(folder / "two"),
    }
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
        lookup = build_dynamic_sd_schedule_lookup(
            covering_schedule(numbers, seats), seats, max(numbers)
        )
        assert set(lookup[1:]) == set(numbers)


GB = 10**9
LOOKUP_TOO = SPECULATORS | {"lookup": Speculator("ngram")}
TWO_ENGINES = LOOKUP_TOO | {"custom": Speculator("eagle3", Path("custom"))}


def gpus(monkeypatch: pytest.MonkeyPatch, count: int, memory: float) -> None:
    properties = SimpleNamespace(total_memory=round(memory))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)


@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("memory", [16, 24, 80])
@pytest.mark.parametrize("speculators", [SPECULATORS, LOOKUP_TOO, TWO_ENGINES])
@pytest.mark.parametrize("name", ["resume_screening", "smollm2/candidate_profiles"])
def test_the_demos_servers_pass_vllm_s_memory_check_side_by_side(
    monkeypatch, log, tmp_path, capsys, count, memory, speculators, name
):
    """All start on the first GPU, one after another."""
    from vllm.v1.worker.utils import request_memory

    engine = load_recipe(name).recipe.serving.engine
    gpus(monkeypatch, count, memory * GB)
    servers = Servers(
        target=TargetConfig(),
        serving=ServingConfig(engine=engine),
        speculators=speculators,
        numbers=dict.fromkeys(speculators, (1,)),
        log_dir=tmp_path,
    )
    turns = [("none", None), *((variant, 1) for variant in speculators)]
    assert servers.groups(turns) == [turns]
    assert capsys.readouterr().err == ""
    free = memory * GB
    for _ in {servers.name(variant) for variant, _ in turns}:
        snapshot = SimpleNamespace(total_memory=memory * GB, free_memory=free, device_="cuda:0")
        request_memory(snapshot, engine)
        free -= weight_bytes(TargetConfig().directory()) + engine.kv_cache_gb * 2**30 + OVERHEAD
    assert free > 0


@pytest.mark.parametrize("memory", [16, 24, 80])
@pytest.mark.parametrize(
    ("engine", "speculators", "fits"),
    [
        ({}, SPECULATORS, False),  # 0.9 each
        ({"gpu_memory_utilization": 0.45}, SPECULATORS, True),
        ({"gpu_memory_utilization": 0.45}, LOOKUP_TOO, False),
        ({"gpu_memory_utilization": 0.3}, LOOKUP_TOO, True),
        ({"gpu_memory_utilization": 0.3}, TWO_ENGINES, False),
        # vLLM allocates the KV cache even where it is larger than the share.
        ({"gpu_memory_utilization": 0.1, "kv_cache_gb": 75.0}, SPECULATORS, False),
    ],
)
def test_servers_that_do_not_fit_a_gpu_together_alternate(
    monkeypatch, log, tmp_path, capsys, memory, engine, speculators, fits
):
    gpus(monkeypatch, 1, memory * GB)
    with opened(tmp_path, True, speculators, **engine) as servers:
        turns = [("none", None), *((variant, 1) for variant in speculators)]
        assert (servers.groups(turns) == [turns]) == fits
        ask(servers, *turns)
    second_start = [line for line in log if line.endswith("starts")][1]
    assert ("none stops" not in log[: log.index(second_start)]) == fits
    error = capsys.readouterr().err
    assert (f"eval.side_by_side: a GPU of {memory} GB has no room for" in error) != fits


def test_a_kv_cache_of_known_size_leaves_the_last_server_its_share(monkeypatch, log, tmp_path):
    """A second server with 0.9 starts only where the first one takes less than 5 %."""
    for memory, fits in ((24, False), (80, True)):
        gpus(monkeypatch, 1, memory * GB)
        servers = opened(tmp_path, gpu_memory_utilization=0.9, kv_cache_gb=0.5)
        assert (len(servers.groups(TURNS)) == 1) == fits
