"""The cost in --dry-run: from R1's config.json alone, on machines with and without GPUs."""

import dataclasses
import json
from pathlib import Path

import pytest

from outrider.pipeline.plan import training_cost as pricing
from outrider.pipeline.plan.plan import plan
from outrider.pipeline.plan.training_cost import Memory, price
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.training.memory import MemoryPlan
from tests.cli.commands import run
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
    index = {"weight_map": dict.fromkeys(names, "model-00163-of-000163.safetensors")}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


def test_r1_is_priced_without_its_weights_as_one_object(r1_target, tmp_path):
    words = ["r1/resume_screening", f"target.model={r1_target}", "traffic.path=nano_r1/social_chat"]
    options = ["--dry-run", "--json", "--gpu-memory", "150"]
    finished = run("outrider", "train", *words, *options, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    told = json.loads(finished.stdout)
    assert list(told["dry_run"]) == ["ingest", "split", "capture", "train", "evaluate", "export"]
    assert "weights are not on this machine" in told["dry_run"]["ingest"]["action"]
    found = told["price"]
    assert found["target"]["weights_here"] is False
    assert found["parameters"]["trained"] == pytest.approx(11.6e9, rel=0.005)
    assert sum(found["parameters"]["parts"].values()) == found["parameters"]["total"]
    assert found["features"]["bytes_per_token"] == 14_340
    assert found["features"]["bytes"] == found["features"]["tokens"] * 14_340 > 0
    [judged] = found["memory"]
    for phase, parts in judged["phases"].items():
        assert sum(parts.values()) <= judged["peak_bytes"], phase
    assert sum(judged["phases"][judged["peak_phase"]].values()) == judged["peak_bytes"]
    assert judged["fits"] == (judged["peak_bytes"] <= 0.95 * H200)
    assert judged["short_by_bytes"] == max(0, judged["peak_bytes"] - judged["usable_bytes"])


def recipe_for(target: Path, *overrides: str):
    return load_recipe(
        "r1/resume_screening",
        [f"target.model={target}", "traffic.path=nano_r1/social_chat", *overrides],
    ).recipe


@pytest.mark.parametrize(("dtype", "each"), [("bf16", 57_348), ("fp8", 28_692)])
def test_states_of_layers_take_their_disk(r1_target, tmp_path, dtype, each):
    """Four states of 7,168 values, 2 bytes each, or 1 byte and a scale; and the token id."""
    recipe = recipe_for(r1_target, "speculator.kind=eagle3", f"capture.dtype={dtype}")
    found = price(RunDirectory(tmp_path), recipe, H200)["features"]
    assert found["bytes_per_token"] == each and found["bytes"] == found["tokens"] * each


def test_a_head_is_published_in_bf16_though_the_target_is_in_fp8(r1_target, tmp_path):
    for kind, each in (("mtp", 1), ("eagle3", 2)):
        recipe = recipe_for(r1_target, f"speculator.kind={kind}")
        found = price(RunDirectory(tmp_path), recipe, H200)
        total = found["parameters"]["total"]
        assert found["speculator_bytes"] / total == pytest.approx(each, rel=0.001)


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
    rows = plan(run_dir, recipe, ["ingest", "capture"], {}, price(run_dir, recipe))
    assert [row["action"].split(";")[0] for row in rows.values()] == [
        "would run",
        "would run after ingest",
    ]
    assert price(run_dir, recipe, H200)["parameters"]["total"] == mtp_size(R1).total


def test_the_cheapest_layout_is_the_first_that_fits_and_all_before_it_do_not():
    memory, rows = Memory(H200, "a GPU"), 32
    r1 = MemoryPlan(mtp_size(R1), 8192, 3)

    def fits(processes: int, stage: int) -> bool:
        return memory.missing(dataclasses.replace(r1, processes=processes, zero_stage=stage)) <= 0

    found = pricing._cheapest(r1, memory, rows)
    tried = [(n, s) for n in (1, 2, 4, 8, 16, 32) for s in ((1, 2, 3) if n > 1 else (1,))]
    first = (found["processes"], found["zero_stage"])
    before = tried[: tried.index(first)]
    assert before and fits(*first) and not any(fits(*layout) for layout in before)
    assert pricing._cheapest(r1, Memory(10**9, "a small GPU"), rows) is None
