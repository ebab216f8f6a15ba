"""The heads that are shipped as bases for nano R1."""

import fnmatch
import tomllib
from pathlib import Path

import pytest

from outrider.common.files import read_json
from outrider.eval.replay.replay import replay
from outrider.pipeline.recipe.shipped import shipped_heads
from outrider.speculators.kinds import check_speculator, trainable_kind_of
from outrider.speculators.kinds.eagle3.shape import EagleShape
from outrider.speculators.kinds.protocol import Origin
from tests.shipped_traffic import general_rows
from tools.nano_r1.heads import ENDPOINT, SETTINGS
from tools.nano_r1.record import WORKLOADS
from tools.nano_r1.states import ComputedStates

ROOT = Path(__file__).parents[3]
HEADS = shipped_heads()
LARGEST_BYTES = 6e6
FLOOR = 1.5
"""Acceptance length at K = 5 that random weights do not reach: they have 1.0."""


@pytest.mark.parametrize("name", HEADS)
def test_it_fits_nano_r1_and_is_small_and_in_the_package(name: str, nano_r1: Path) -> None:
    directory = HEADS[name]
    check_speculator(directory, nano_r1)
    assert trainable_kind_of(directory).name == directory.name
    assert sum(path.stat().st_size for path in directory.iterdir()) <= LARGEST_BYTES
    target = read_json(nano_r1 / "config.json")
    shape = EagleShape.read(read_json(directory / "config.json"), target, directory)
    assert shape.drafts == SETTINGS["speculator.head.draft_vocabulary"]
    names = sorted(path.name for path in directory.iterdir())
    assert names == ["config.json", "model.safetensors"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["outrider.recipes.nano_r1"]
    for file in (f"{directory.name}/{name}" for name in names):
        assert any(fnmatch.fnmatch(file, each) for each in patterns), file


@pytest.fixture(scope="module")
def responses(nano_r1: Path) -> ComputedStates:
    """A few general responses, with the states that the heads read."""
    return ComputedStates(nano_r1, general_rows(every=40), [2, 8, 13])


@pytest.mark.parametrize("name", HEADS)
def test_it_drafts_general_traffic_well(
    name: str, responses: ComputedStates, nano_r1: Path, tmp_path: Path
) -> None:
    def length(directory: Path) -> float:
        rows = responses.rows.values()
        return replay(directory, nano_r1, responses, rows, depth=5).acceptance_length()[-1]

    kind = trainable_kind_of(HEADS[name])
    zeros = ((key, 0 * tensor) for key, tensor in kind.swap_tensors(HEADS[name]) if "fc" in key)
    kind.write(zeros, Origin(nano_r1, HEADS[name]), tmp_path / "blind")
    # A head that does not see the target's states still knows which tokens are frequent.
    assert length(HEADS[name]) > max(FLOOR, length(tmp_path / "blind") + 0.2)


def test_no_prompt_of_the_shipped_traffic_was_trained_on() -> None:
    assert ENDPOINT.part == "train"
    assert all(workload.part == "traffic" for workload in WORKLOADS.values())
