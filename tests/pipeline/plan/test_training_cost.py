"""The cost in --dry-run: from R1's config.json alone, on machines with and without GPUs."""

import dataclasses
import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from outrider.common.files import write_json
from outrider.common.gpu_cards import card_named
from outrider.pipeline.plan import training_cost as pricing
from outrider.pipeline.plan.plan import plan_stages, print_plan
from outrider.pipeline.plan.target_size import WORKSPACE, target_size
from outrider.pipeline.plan.training_cost import Memory, price
from outrider.pipeline.provenance import Gpu
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.serving.config import EngineConfig
from outrider.training.memory import MemoryPlan
from tests.cli.commands import run
from tests.distill_configs import DISTILLS
from tests.r1_config import R1, mtp_size

H200 = 150 * 10**9


@pytest.fixture(scope="module")
def r1_target(tmp_path_factory) -> Path:
    """A directory as a download of the small files leaves it: no shard."""
    directory = tmp_path_factory.mktemp("DeepSeek-R1")
    (directory / "config.json").write_text(json.dumps(R1))
    names = [
        f"model.layers.61.{name}" for name in ("eh_proj.weight", "enorm.weight", "mlp.gate.weight")
    ]
    names += ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    index = {"weight_map": dict.fromkeys(names, "model-00163-of-000163.safetensors")}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def test_r1_is_priced_without_its_weights_as_one_object(r1_target, tmp_path):
    words = ["r1/resume_screening", f"target.model={r1_target}", "traffic.path=nano_r1/social_chat"]
    words += ["--dry-run", "--json", "--gpu-memory", "150"]
    finished = run("outrider", "train", *words, cwd=tmp_path)
    assert (finished.returncode, finished.stderr) == (0, "")
    found = json.loads(finished.stdout)["price"]
    assert found["target"]["weights_here"] is False
    assert found["parameters"]["trained"] == pytest.approx(11.6e9, rel=0.005)
    assert sum(found["parameters"]["parts"].values()) == found["parameters"]["total"]
    [judged] = found["memory"]
    phases = {name: sum(parts.values()) for name, parts in judged["phases"].items()}
    assert phases[judged["peak_phase"]] == judged["peak_bytes"] == max(phases.values())
    assert judged["fits"] == (judged["peak_bytes"] <= 0.95 * H200)


def recipe_for(target: Path, *overrides: str):
    return load_recipe(
        "r1/resume_screening",
        [f"target.model={target}", "traffic.path=nano_r1/social_chat", *overrides],
    ).recipe


@pytest.mark.parametrize(
    ("kind", "dtype", "state", "weight"),
    [
        ("mtp", "bf16", 14_340, 1),
        ("eagle3", "bf16", 57_348, 2),
        ("eagle3", "fp8", 28_692, 2),
    ],
)
def test_states_and_weights_take_their_disk(r1_target, tmp_path, kind, dtype, state, weight):
    """States of 7,168 values, 2 bytes each, or 1 byte and a scale; and the token id.

    A head is published in bf16, though the target is in FP8.
    """
    recipe = recipe_for(r1_target, f"speculator.kind={kind}", f"capture.dtype={dtype}")
    found = price(RunDirectory(tmp_path), recipe, H200)
    states = found["features"]
    total = found["parameters"]["total"]
    assert states["bytes_per_token"] == state and states["bytes"] == states["tokens"] * state
    assert found["speculator_bytes"] / total == pytest.approx(weight, rel=0.001)


def test_a_hub_model_with_its_config_alone_is_not_downloaded(r1_target, tmp_path, monkeypatch):
    """The hub's cache holds a snapshot without shards; a stage's state would download the rest."""
    recipe = recipe_for(r1_target)
    monkeypatch.setattr(
        type(recipe.target), "directory", lambda self: pytest.fail("this would download")
    )
    for module in ("plan", "training_cost"):
        monkeypatch.setattr(
            f"outrider.pipeline.plan.{module}.local_target", lambda recipe: r1_target
        )
    run_dir = RunDirectory.of(recipe, tmp_path)
    rows = plan_stages(run_dir, recipe, ["ingest", "capture"], {}, price(run_dir, recipe))
    assert [row["action"].split(";")[0] for row in rows.values()] == [
        "would run",
        "would run after ingest",
    ]


def test_the_cheapest_layout_is_the_first_that_fits_and_all_before_it_do_not():
    memory = Memory(H200, "a GPU")
    rows = 32
    r1 = MemoryPlan(mtp_size(R1), 8192, 3)

    def fits(processes: int, stage: int) -> bool:
        return memory.missing(dataclasses.replace(r1, processes=processes, zero_stage=stage)) <= 0

    found = pricing._cheapest(r1, memory, rows)
    tried = [(n, s) for n in (1, 2, 4, 8, 16, 32) for s in ((1, 2, 3) if n > 1 else (1,))]
    first = (found["processes"], found["zero_stage"])
    before = tried[: tried.index(first)]
    assert before and fits(*first) and not any(fits(*layout) for layout in before)
    assert pricing._cheapest(r1, Memory(10**9, "a small GPU"), rows) is None


def distill_price(tmp_path, *words, **device):
    """Of an 8B distill whose ingest counted prompts of 1,100 tokens on average."""
    target = tmp_path / "target"
    target.mkdir(exist_ok=True)
    (target / "config.json").write_text(json.dumps(DISTILLS["Llama-8B"][0]))
    words = (f"target.model={target}", "traffic.path=nano_r1/social_chat", *words)
    recipe = load_recipe("r1_distill/template", words).recipe
    run = RunDirectory(tmp_path / "run")
    ingested = {"exchanges": 1000, "prompt_tokens": 1_100_000, "completion_tokens": 2_000_000}
    write_json(run.stage_record("ingest"), {"result": ingested})
    return recipe, price(run, recipe, **device)


def printed(priced):
    console = Console(record=True, width=300, file=io.StringIO())
    print_plan({"capture": {"action": "would run", "cost": "1 h"}}, priced, console)
    return " ".join(console.export_text().split())


def test_memory_alone_gives_no_hours_and_a_card_gives_its_own(tmp_path):
    _, by_memory = distill_price(tmp_path, gpu_bytes=24 * 10**9)
    assert by_memory["rates"] is None and by_memory["stages"] == {}
    text = printed(by_memory)
    assert "no hours: --gpu-memory names no card; --gpu NAME takes B200, H200" in text
    assert "total" not in text.partition("cost")[0]
    _, by_card = distill_price(tmp_path, card=card_named("L4"))
    assert "1 x L4" in printed(by_card) and by_card["memory"][0]["bytes"] == 23_034 * 2**20
    # Both: the card's speed, another size of memory.
    _, both = distill_price(tmp_path, gpu_bytes=20 * 10**9, card=card_named("L4"))
    assert both["stages"] == by_card["stages"] and both["memory"][0]["bytes"] == 20 * 10**9


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ("NVIDIA A10", "1 x A10 at assumed shares of its data sheet"),
        ("NVIDIA A10G", "no hours: no data sheet of NVIDIA A10G; --gpu NAME takes B200,"),
    ],
)
def test_hours_are_those_of_the_gpu_found(tmp_path, monkeypatch, found, expected):
    monkeypatch.setattr(pricing, "gpus", lambda: [Gpu(found, 23_028, "580.1")])
    assert expected in printed(distill_price(tmp_path)[1])


@pytest.mark.parametrize(
    ("card", "words", "waits"),
    [
        ("L4", ["eval.concurrency=[8,1,32]"], True),
        ("L4", ["eval.concurrency=[1]"], False),
        ("H100", ["eval.concurrency=[8,1,32]"], False),
    ],
)
def test_requests_that_the_kv_cache_has_no_room_for_are_reported(tmp_path, card, words, waits):
    """The cache is what is left of 90 % of the memory: weights, drafter and workspace are taken."""
    recipe, priced = distill_price(tmp_path, *words, "eval.max_tokens=1024", card=card_named(card))
    target = priced["target"]
    memory = card_named(card).bytes
    taken = target["weight_bytes"] + priced["speculator_bytes"] + WORKSPACE
    room = recipe.serving.engine.gpu_memory_utilization * memory - taken
    assert target["kv_cache_tokens"] == pytest.approx(room / target["kv_bytes_per_token"], abs=1)
    text = printed(priced)
    assert f"KV cache on 1 x {card}: about {target['kv_cache_tokens']:,} tokens" in text
    assert ("others wait or are preempted" in text) == waits
    if waits:
        fit = target["kv_cache_tokens"] // (1_100 + 1_024)
        assert f"{fit} requests with prompts of 1,100 tokens (the log's mean)" in text
        assert "of 32 (eval.concurrency)" in text


def test_the_kv_cache_is_shared_by_ranks_with_their_own_heads_and_halved_by_fp8():
    size = target_size(DISTILLS["Llama-8B"][0])  # 8 KV heads
    memory = card_named("L4").bytes

    def room(**engine):
        return size.cache_tokens(EngineConfig(**engine), memory)

    # Two ranks have two memories for one copy of the weights, and each half of the KV heads.
    both = 2 * (0.9 * memory - WORKSPACE) - size.weight_bytes
    assert room(tensor_parallel=2) == pytest.approx(both / size.kv_bytes_per_token, abs=1)
    assert room(extra_arguments={"kv_cache_dtype": "fp8_e4m3"}) == pytest.approx(2 * room(), abs=1)
    assert room(data_parallel=3) == 3 * room()
    assert room(kv_cache_gb=1) == 2**30 // size.kv_bytes_per_token


@pytest.mark.parametrize(("effort", "told"), [("thorough", True), ("trial", False)])
def test_answers_that_are_not_priced_are_told(r1_target, tmp_path, effort, told):
    recipe = recipe_for(r1_target, f"effort={effort}")
    priced = price(RunDirectory(tmp_path), recipe, card=card_named("H200"))
    assert ("capture.answers_up_to" in printed(priced)) is told


def test_a_download_takes_the_time_of_the_recipe_s_speed(r1_target, tmp_path):
    """The directory of the fixture has no weights."""
    for speed, seconds in ((0.5, 1346), (0.1, 6728)):
        recipe = recipe_for(r1_target, f"plan.download_gb_per_s={speed}")
        priced = price(RunDirectory(tmp_path), recipe, card=card_named("H200"))
        assert priced["download"]["seconds"] == pytest.approx(seconds, rel=0.01)
        assert f"to download at {speed} GB/s (plan.download_gb_per_s)" in printed(priced)
