"""On a GPU no tensor is left on the CPU: training, validation, fits, replay, parity, for each kind.

The GPU is this CPU (tests/gpu_on_cpu.py). DeepSpeed and checkpoints, which need a process group,
are replaced; the rest is the trainer's own loop.
"""

import contextlib
import dataclasses
import itertools
import pkgutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from outrider.common.files import read_json
from outrider.data.features.feature_store import FeatureStore
from outrider.eval.bench.prompts import Prompt
from outrider.eval.lossless.verification import TargetScores
from outrider.eval.replay.draft_parity import RecordedStep, Recording, draft_parity
from outrider.eval.replay.replay import CEILING, replay
from outrider.serving.vllm_hooks.grammar_masks import TokenMasks
from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.features import SequenceStates
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds import trainable_kind_of, trainable_names
from outrider.speculators.parity import ParityConfig
from outrider.training import memory, start, trainer
from outrider.training.config import TrainingConfig
from outrider.training.distributed.accelerator import ChainUnroll
from outrider.training.distributed.spec import SequenceSampling
from outrider.training.packing import TrainingSample
from outrider.training.trainer import train_rank
from tests.eagle3_head import write_eagle3_head
from tests.gpu_on_cpu import GPU, MixedDevices, gpu_on_cpu
from tests.tiny import VOCAB
from tests.training.corpus import Corpus, make_corpus, training_spec

DEPTH = 3
HEAD = HeadConfig(draft_vocabulary=0.9, layers=(1, 2))
MLA = HeadConfig(draft_vocabulary=0.9, layers=(1, 2), layer_type="mla")
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "mtp": ({"kind": "mtp"}, {"loss": "ce"}),
    "mtp_lora": ({"kind": "mtp", "train": "lora"}, {"loss": "lk_alpha", "compute": "bf16"}),
    "mtp_sampled": ({"kind": "mtp", "draft_sample_method": "probabilistic"}, {}),
    "eagle3": ({"kind": "eagle3", "head": HEAD}, {"loss": "lk_alpha"}),
    "eagle3_mla": ({"kind": "eagle3", "head": MLA}, {}),
    "p_eagle": ({"kind": "p_eagle", "head": HEAD}, {}),
    "dflash": ({"kind": "dflash", "head": HEAD}, {}),
    "dspark": ({"kind": "dspark", "head": HEAD, "draft_sample_method": "probabilistic"}, {}),
}
"""Sections `speculator` and `training`: each kind, loss, way to draft and to start once."""


class OneRank:
    """What the trainer uses of an Accelerator: one process with a GPU."""

    num_processes = 1
    process_index = 0
    is_main_process = True
    log_with = ()
    trackers = ()
    device = GPU
    deepspeed_engine_wrapped = SimpleNamespace(get_global_grad_norm=lambda: 1.0)

    def reduce(self, tensor: Tensor, reduction: str) -> Tensor:
        """NCCL has only a GPU's collectives."""
        assert tensor.is_cuda
        return tensor.clone()

    def accumulate(self, model: torch.nn.Module) -> contextlib.nullcontext:
        return contextlib.nullcontext()

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def print(self, *words: object, **_: object) -> None:
        print(*words)

    def wait_for_everyone(self) -> None:
        pass


def prepared(_: OneRank, model: ChainUnroll) -> tuple[ChainUnroll, torch.optim.Optimizer]:
    """Weights stay where the start put them, and each trained one must get a gradient there."""
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    assert not [name for name, tensor in tensors.items() if not tensor.is_cuda]
    return model, torch.optim.SGD(model.parameters(), lr=1e-3, foreach=False)


def masks_of(*_: object) -> Callable[[TrainingSample, SequenceStates], TokenMasks | None]:
    """A grammar for one sample in three that allows every token."""

    def of(sample: TrainingSample, states: SequenceStates) -> TokenMasks | None:
        if int(sample.sequence_id[1:]) % 3:
            return None
        words = torch.full((1, -(-VOCAB // 32)), -1, dtype=torch.int32)
        completion = len(states.token_ids) - states.completion_start
        return TokenMasks(words, torch.zeros(completion, dtype=torch.long))

    return of


def on_gpu(tensor: Tensor) -> Tensor:
    """A broadcast among one process."""
    assert tensor.is_cuda
    return tensor


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces what needs a process group."""
    for module, name, value in (
        (trainer, "make_accelerator", lambda *_: OneRank()),
        (trainer, "prepare_model", prepared),
        (trainer.Trainer, "_save", lambda *_: None),
        (trainer, "masks_of", masks_of),
        (start, "newest_state", lambda *_: None),
        (start, "broadcast", on_gpu),
        (trainer.signal, "signal", lambda *_: None),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    made = make_corpus(tmp_path_factory.mktemp("devices"), 8, 3, layers=(1, 2))
    # A random target's texts have nothing in common: drafts are accepted in the same ones only.
    ids = made.parts["train"]
    return dataclasses.replace(made, parts={"train": ids, "validation": ids[:3]})


def trained(corpus: Corpus, folder: Path, case: str, **changes: Any) -> Path:
    """The speculator of a run on the GPU, over every way to sample."""
    speculator, training = CASES[case]
    config = SpeculatorConfig(**{"depth": DEPTH, **speculator, **changes})
    short = {"row_tokens": 128, "epochs": 1, "scratch_epochs": 1}
    # In bf16, a random target's drafts are near ties.
    settings = {"compute": "fp32", "parity": "warn", **short, **training}
    spec = training_spec(
        folder,
        corpus.target_dir,
        corpus.features_dir,
        corpus.parts,
        config,
        TrainingConfig(**settings),
    )
    greedy = config.draft_sample_method == "greedy"
    ways = itertools.cycle([(0.6, 0.95, 0), (0.0, 1.0, 0), (0.7, 0.9, 5), (0.6, 1.0, 0, greedy)])
    spec.sampling = {
        name: SequenceSampling(*way) for name, way in zip(spec.sampling, ways, strict=False)
    }
    with gpu_on_cpu():
        result = train_rank(spec, FeatureStore.open(corpus.features_dir))
    assert result["steps"] > 0
    return spec.publish_dir


@pytest.mark.parametrize("case", CASES)
def test_a_kind_trains_and_is_replayed(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: None, case: str
) -> None:
    """Where rows are long, backward computes each depth again."""
    monkeypatch.setattr(memory, "KEPT_AT_MOST", 0)
    speculator = trained(corpus, tmp_path, case)
    store = FeatureStore.open(corpus.features_dir)
    replayed(corpus, store, speculator)
    compared(corpus, store, speculator)


def replayed(corpus: Corpus, store: FeatureStore, speculator: Path | str) -> None:
    """On the GPU as on the CPU, with greedy and with sampled drafts."""
    rows = [
        {"sequence_id": name, "session": name, "temperature": 0.6, "top_p": 0.9, "top_k": 4}
        for name in corpus.parts["validation"]
    ]
    for method in ("greedy", "probabilistic"):
        settings: Any = {"depth": DEPTH, "draft_sample_method": method, "by_anchor": True}
        here = replay(speculator, corpus.target_dir, store, rows, **settings)
        with gpu_on_cpu():
            there = replay(speculator, corpus.target_dir, store, rows, **settings)
        assert there.acceptance_length() == pytest.approx(here.acceptance_length(), rel=1e-4)


def compared(corpus: Corpus, store: FeatureStore, speculator: Path) -> None:
    """Draft parity with recorded drafts that are the logged tokens."""
    states = store.read(corpus.parts["validation"][0])
    first = states.completion_start + 2
    token_ids = states.token_ids[: first + DEPTH].tolist()
    step = RecordedStep(
        request=0,
        anchor=states.completion_start,
        token_ids=token_ids,
        drafts=token_ids[first:],
        logprobs=[-1.0] * DEPTH,
    )
    target_config = read_json(corpus.target_dir / "config.json")
    kind = trainable_kind_of(speculator)
    spec = kind.features(read_json(speculator / "config.json"), target_config)
    with gpu_on_cpu():
        sums = draft_parity(
            recording=Recording([step], [spec.inputs(states)]),
            speculator_dir=speculator,
            target_dir=corpus.target_dir,
            k=DEPTH,
            parity=ParityConfig(),
        )
    assert [count for count, *_ in sums] == [1.0] * DEPTH


def test_the_cases_have_every_kind() -> None:
    assert {speculator["kind"] for speculator, _ in CASES.values()} == {*trainable_names()}


def test_a_base_is_compared_with_a_fit(corpus: Corpus, tmp_path: Path, rank: None) -> None:
    """Both starts, and the base's rows for the traffic's tokens."""
    base = write_eagle3_head(corpus.target_dir, tmp_path / "base", layers=[1, 2])
    trained(corpus, tmp_path, "eagle3", base=str(base))


def test_the_perfect_drafter_is_replayed(corpus: Corpus) -> None:
    replayed(corpus, FeatureStore.open(corpus.features_dir), CEILING)


def test_responses_are_scored(corpus: Corpus) -> None:
    states = FeatureStore.open(corpus.features_dir).read(corpus.parts["validation"][0])
    store: Any = SimpleNamespace(read=lambda _: states)
    ids = states.token_ids.tolist()
    completion = ids[states.completion_start :]
    prompt = Prompt("s", "s", "", ids[: states.completion_start], "")
    found = []
    for context in (contextlib.nullcontext, gpu_on_cpu):
        with context():
            scores = TargetScores(corpus.target_dir, store, "float32")
            gap = scores.gap(prompt, completion, index=1, token=3, alternative=5)
            found.append([*scores.logprobs(prompt, completion, 0.6), gap])
    assert found[1] == pytest.approx(found[0], rel=1e-5)


LEFT_BEHIND = [
    "outrider.speculators.heads:TargetEnds.embed",
    "outrider.speculators.layers.rotary:Rotary.tables",
    "outrider.speculators.layers.prefix_attention:_extremes",
    "outrider.speculators.acceptance:accept_probability",
    "outrider.speculators.kinds.eagle3.closed_form:_solution",
    "outrider.training.objective:align_to_targets",
    "outrider.training.losses:served_distribution",
]


@pytest.mark.parametrize("name", LEFT_BEHIND)
def test_a_tensor_left_on_the_cpu_is_found(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: None, name: str
) -> None:
    """Each function's results, as if they had been made on the CPU."""
    function = pkgutil.resolve_name(name)

    def left_behind(*args: Any, **kwargs: Any) -> Any:
        return tree_map_only(Tensor, Tensor.cpu, function(*args, **kwargs))

    monkeypatch.setattr(name.replace(":", "."), left_behind)
    with pytest.raises(MixedDevices):
        trained(corpus, tmp_path, "eagle3")
