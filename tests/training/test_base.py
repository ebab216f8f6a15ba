"""The base is the speculator that the recipe names: warm start, parity, base_kl, bytes kept."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from outrider.common.errors import OutriderError
from outrider.data.features.feature_store import FeatureStore
from outrider.eval.replay.replay import replay
from outrider.pipeline.preflight import check_target
from outrider.speculators.config import SpeculatorConfig
from tests.training.corpus import Corpus, make_corpus

DEPTH = 3


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return make_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def base(corpus: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A speculator in use that is not the target's own: one that was trained before."""
    run_dir = tmp_path_factory.mktemp("earlier")
    config = SpeculatorConfig(depth=DEPTH)
    corpus.train(run_dir, speculator=config, epochs=6, learning_rate=1e-2)
    return run_dir / "speculator"


def accepted(corpus: Corpus, directory: Path) -> list[float]:
    """Acceptance length on the validation part by exact replay."""
    rows = [
        {"sequence_id": name, "session": name, "temperature": 0.6, "top_p": 0.95, "top_k": 0}
        for name in corpus.parts["validation"]
    ]
    store = FeatureStore.open(corpus.features_dir)
    return replay(directory, corpus.target_dir, store, rows, depth=DEPTH).acceptance_length()


def test_training_starts_from_the_named_base(corpus: Corpus, base: Path, tmp_path: Path) -> None:
    config = SpeculatorConfig(depth=DEPTH, base=str(base), train="non_routed")
    result = corpus.train(tmp_path, speculator=config, base_kl=0.5, epochs=1)
    of_base, of_target = accepted(corpus, base), accepted(corpus, corpus.target_dir)
    assert of_base[0] > of_target[0] + 0.01
    assert result["base"]["acceptance_length"] == pytest.approx(of_base, rel=1e-5)
    written, kept, original = (
        load_file(path / "model.safetensors")
        for path in (tmp_path / "speculator", base, corpus.target_dir)
    )
    frozen = [n for n in written if ".experts." in n and ".shared_experts." not in n]
    assert frozen
    for name in frozen:
        assert torch.equal(written[name], kept[name])
        assert not torch.equal(written[name], original[name])


def test_a_base_of_another_target_is_refused(corpus: Corpus, base: Path, tmp_path: Path) -> None:
    check_target(corpus.target_dir, SpeculatorConfig(base=str(base)))
    other = tmp_path / "other"
    other.mkdir()
    text = (base / "config.json").read_text(encoding="utf-8")
    (other / "config.json").write_text(text.replace('"hidden_size": 64', '"hidden_size": 65'))
    (other / "model.safetensors").write_bytes((base / "model.safetensors").read_bytes())
    with pytest.raises(OutriderError, match="hidden_size = 65, but the target has 64"):
        check_target(corpus.target_dir, SpeculatorConfig(base=str(other)))
