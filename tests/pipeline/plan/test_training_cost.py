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
    rows = plan(run_dir, recipe, ["ingest", "capture"], {}, price(run_dir, recipe))
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
