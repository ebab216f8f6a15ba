"""Trained and frozen parts of each mode: whole runs on an FP8 target, with resume and two ranks."""

import dataclasses
import os
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from outrider.data.features.feature_store import FeatureStore
from outrider.eval.replay.replay import replay
from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.kinds.mtp.kind import MTP
from outrider.speculators.kinds.protocol import Origin
from outrider.training.distributed.spec import Preempted
from tests.fp8_target import write_fp8_copy
from tests.training.corpus import Corpus, make_corpus
from tests.training.test_trainer import assert_same_run, losses, metrics, once_at_step

SETTINGS = {"epochs": 4, "checkpoint_every": 4, "evaluate_every": 6, "learning_rate": 1e-2}
"""12 steps: checkpoints at 4, 8, 12, evaluations at 6 and 12."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """The states are those of the unquantized target, which are close enough to learn from."""
    folder = tmp_path_factory.mktemp("fp8_corpus")
    made = make_corpus(folder)
    return dataclasses.replace(made, target_dir=write_fp8_copy(made.target_dir, folder / "fp8"))


LORA = SpeculatorConfig(depth=3, train="lora", lora_rank=8)


@pytest.fixture(
    scope="module",
    params=[SpeculatorConfig(depth=3, train="non_routed"), LORA],
    ids=["non_routed", "lora"],
)
def whole(
    request: pytest.FixtureRequest, corpus: Corpus, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, SpeculatorConfig, dict]:
    """An uninterrupted run of one process."""
    run_dir = tmp_path_factory.mktemp(request.param.train)
    return run_dir, request.param, corpus.train(run_dir, speculator=request.param, **SETTINGS)


def test_only_what_is_trained_moves(
    corpus: Corpus, whole: tuple[Path, SpeculatorConfig, dict]
) -> None:
    run_dir, config, result = whole
    assert result["best_step"] > 0 and losses(run_dir)[-1] < 0.8 * losses(run_dir)[0]
    written, original = (
        load_file(path / "model.safetensors")
        for path in (run_dir / "speculator", corpus.target_dir)
    )
    same = {
        name
        for name, tensor in written.items()
        if torch.equal(tensor.view(torch.uint8), original[name].view(torch.uint8))
    }
    changed = {name for name in written.keys() - same if not name.endswith("_scale_inv")}
    assert {"eh_proj", "o_proj", "gate", "hnorm"} <= {name.split(".")[-2] for name in changed}
    assert not [name for name in changed if name.endswith("e_score_correction_bias")]
    # Frozen experts are exported unchanged, scales included; adapters change every projection of
    # every expert.
    experts = {name for name in written if ".experts." in name and ".shared_experts." not in name}
    assert len(experts) == 2 * 4 * 3
    assert same & experts == (experts if config.train == "non_routed" else set())
    checkpoint = next((run_dir / "training" / "checkpoints").iterdir())
    largest = max(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())
    origin = Origin(corpus.target_dir, None, train=config.train, lora_rank=8)
    parameters = MTP().start(origin, torch.float32, "cpu", seed=0).parameters()
    # Float32 masters and two moments; with the experts it would be nearly twice as much.
    assert largest < 1.1 * 12 * sum(parameter.numel() for parameter in parameters)


def test_evaluation_sees_what_the_exported_weights_accept(
    corpus: Corpus, whole: tuple[Path, SpeculatorConfig, dict]
) -> None:
    run_dir, _, result = whole
    rows = [
        {"sequence_id": s, "session": s, "temperature": 0.6, "top_p": 0.95, "top_k": 0}
        for s in corpus.parts["validation"]
    ]
    store = FeatureStore.open(corpus.features_dir)
    found = replay(run_dir / "speculator", corpus.target_dir, store, rows, depth=3)
    assert found.acceptance_length() == pytest.approx(
        result["exported"]["acceptance_length"], rel=1e-6
    )
    last = metrics(run_dir)[-1]
    assert last["exported_acceptance_length"] == result["exported"]["acceptance_length"]


# Adapters on frozen experts are the hardest case to resume and to shard, and include frozen
# experts.
lora_alone = pytest.mark.parametrize("whole", [LORA], ids=["lora"], indirect=True)


@lora_alone
def test_stopped_and_gone_on_it_ends_with_the_same_bits(
    corpus: Corpus, whole: tuple[Path, SpeculatorConfig, dict], tmp_path: Path
) -> None:
    run_dir, config, result = whole
    with (
        once_at_step(tmp_path, 5, lambda: os.kill(os.getpid(), signal.SIGTERM)),
        pytest.raises(Preempted, match="is saved"),
    ):
        corpus.train(tmp_path, speculator=config, **SETTINGS)
    assert 5 <= len(losses(tmp_path)) < 12
    assert corpus.train(tmp_path, speculator=config, **SETTINGS)["best"] == result["best"]
    assert_same_run(run_dir, tmp_path)
