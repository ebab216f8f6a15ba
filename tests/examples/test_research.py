"""The worked example of docs/how-to/try-a-kind-or-a-loss.md: a kind and a loss without a fork."""

import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import outrider
from outrider.common.errors import OutriderError
from outrider.data.features.feature_store import FeatureStore
from outrider.eval.replay.replay import replay
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.stages.train import TRAIN
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds import KINDS, check_speculator, drafter_kind_of, trainable_kind
from outrider.training.config import TrainingConfig
from tests.test_rooms import ROOT
from tests.training.corpus import Corpus, make_corpus

RESEARCH = ROOT / "examples" / "research"
PAGE = ROOT / "docs" / "how-to" / "try-a-kind-or-a-loss.md"
SETTINGS: dict[str, Any] = {
    "scratch_epochs": 20,
    "learning_rate": 5e-3,
    "evaluate_every": 1000,
    "checkpoint_every": 1000,
    "rows_per_step": 2,
}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example as an installed package for processes that start now; returns its folder."""
    folder = tmp_path / "site"
    metadata = folder / "outrider_research-0.1.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: outrider-research\n")
    toml = (RESEARCH / "pyproject.toml").read_text(encoding="utf-8")
    point = 'frozen_rows = "research_kind:FrozenRows"'
    assert f'[project.entry-points."outrider.kinds"]\n{point}' in toml
    (metadata / "entry_points.txt").write_text(
        "[outrider.kinds]\nfrozen_rows = research_kind:FrozenRows\n"
        "[outrider.formats]\ntoy = toy_format\n"
    )
    # The format of CONTRIBUTING.md
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    module = contributing.partition('```python\n"""Toy logs')[2].partition("```")[0]
    (folder / "toy_format.py").write_text(f'"""Toy logs{module}')
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{RESEARCH}")
    return folder


@pytest.fixture
def frozen_rows(installed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The example's kind in this process too, where its entry point puts it: first."""
    monkeypatch.syspath_prepend(str(RESEARCH))
    from research_kind import FrozenRows

    built_in = dict(KINDS)
    KINDS.clear()
    KINDS.update({FrozenRows.name: FrozenRows(), **built_in})
    yield
    KINDS.clear()
    KINDS.update(built_in)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    made = make_corpus(tmp_path_factory.mktemp("research"), 10, 4, layers=(1, 2))
    # A random target's texts have nothing in common: what is learned shows on the same ones.
    ids = made.parts["train"]
    return dataclasses.replace(made, parts={"train": ids, "validation": ids[:3]})


def speculator(kind: str) -> SpeculatorConfig:
    return SpeculatorConfig(kind=kind, depth=2, head=HeadConfig(draft_vocabulary=0.9))


def test_the_page_has_the_files() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for path in RESEARCH.iterdir():
        if path.is_file():
            assert f"\n{path.read_text(encoding='utf-8')}```" in page, path.name
    assert len((RESEARCH / "research_kind.py").read_text().splitlines()) <= 60


def test_an_installed_package_adds_its_kind_and_its_format(installed: Path) -> None:
    log = '{"question": "Hi", "reply": "Hello.", "end": "stop"}\n'
    (installed / "log.jsonl").write_text(log)
    program = (
        "from outrider.data.formats import FORMATS, format_of\n"
        "from outrider.data.files.sources import log_files\n"
        "from outrider.speculators.config import SpeculatorConfig\n"
        "from outrider.speculators.kinds import KINDS\n"
        "print(next(iter(KINDS)), SpeculatorConfig(kind='frozen_rows').kind)\n"
        "print(next(iter(FORMATS)), *map(format_of, log_files('log.jsonl')))\n"
    )
    printed = subprocess.run(
        [sys.executable, "-c", program],
        cwd=installed,
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout == "frozen_rows frozen_rows\ntoy toy\n"


def test_the_kind_learns_and_its_rows_stay_the_targets(
    corpus: Corpus, tmp_path: Path, frozen_rows: None
) -> None:
    # By the real launcher: forked ranks would have the registry of before.
    kind = speculator("frozen_rows")
    result = corpus.train(tmp_path, speculator=kind, launch=True, **SETTINGS)
    best, start = (result[name]["acceptance_length"][-1] for name in ("best", "base"))
    assert best > start + 0.05
    directory = tmp_path / "speculator"
    assert drafter_kind_of(directory).name == "frozen_rows"
    check_speculator(directory, corpus.target_dir)
    settings = drafter_kind_of(directory).vllm_settings(directory, 2, "greedy", None)
    assert settings is not None and settings["method"] == "eagle3"
    head: Any = trainable_kind("frozen_rows").load(directory, corpus.target_dir, torch.float32)
    rows_VH = load_target_ends(corpus.target_dir).lm_head_VH.float()
    torch.testing.assert_close(head.lm_head.weight, rows_VH[head.target_ids_D])
    assert not head.lm_head.weight.requires_grad
    rows = [
        {"sequence_id": name, "session": name, "temperature": 0.6, "top_p": 0.95, "top_k": 0}
        for name in corpus.parts["validation"]
    ]
    store = FeatureStore.open(corpus.features_dir)
    sums = replay(directory, corpus.target_dir, store, rows, depth=2)
    expected = result["exported"]["acceptance_length"]
    assert sums.acceptance_length() == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_the_loss_trains_in_the_ranks(corpus: Corpus, tmp_path: Path) -> None:
    name = "examples.research.research_loss:total_variation"
    result = corpus.train(tmp_path, speculator=speculator("eagle3"), loss=name, **SETTINGS)
    best, start = (result[name]["acceptance_length"][-1] for name in ("best", "base"))
    assert best > start + 0.05


@pytest.mark.parametrize("loss", ["kll", "my-losses:tv", "my_losses:", ":tv", "a b:c"])
def test_other_names_of_a_loss_are_refused(loss: str) -> None:
    with pytest.raises(ValueError, match=r"choose kl, ce, lk_alpha, or name your own as module:"):
        TrainingConfig(loss=loss)


def test_an_edited_loss_trains_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "edited_loss.py"
    file.write_text("def loss(z, p): ...\n")
    recipe = load_recipe("resume_screening", ["training.loss=edited_loss:loss"]).recipe
    before = TRAIN.settings(recipe)
    assert TRAIN.settings(recipe) == before
    file.write_text("def loss(z, p): return z\n")
    assert TRAIN.settings(recipe) != before
    file.unlink()
    with pytest.raises(
        OutriderError, match=r"training\.loss = 'edited_loss:loss': No module named"
    ):
        TRAIN.settings(recipe)


@pytest.mark.slow
def test_a_copy_of_a_run_keeps_its_stages(tmp_path: Path) -> None:
    words = ["split.max_train_sequences=20", "split.max_heldout_sequences=20"]
    stages = "ingest,split"
    first = outrider.train("resume_screening", *words, "name=a", runs=tmp_path, stages=stages)
    shutil.copytree(first.root, tmp_path / "b")
    changed = [*words, "name=b", "training.loss=ce"]
    rows, _ = outrider.open("resume_screening", *changed, runs=tmp_path).plan(f"{stages},train")
    kept = "nothing changed, would be kept"
    assert rows["ingest"]["action"] == rows["split"]["action"] == kept
    assert rows["train"]["action"].startswith("would run")
