"""A tiny target and a real feature store with its states, in two seconds."""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import torch
import transformers
from transformers import AutoModelForCausalLM, PretrainedConfig

from outrider.common.cluster.config import ClusterConfig
from outrider.data.features.feature_writer import FeatureWriter
from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.features import (
    FINAL_NORM,
    FeatureSpec,
    FeatureStream,
    SequenceStates,
)
from outrider.training.config import TrainingConfig
from outrider.training.distributed import launch as launcher
from outrider.training.distributed.spec import TrainingSpec
from tests.tiny import HIDDEN, VOCAB, write_tiny_target
from tests.training.forked_ranks import run_forked
from tests.training.store_worker import STORE, STORE_WORKER


@dataclass(frozen=True)
class Corpus:
    """Directories of a target and its features, and the sequence ids of the parts."""

    target_dir: Path
    features_dir: Path
    parts: dict[str, list[str]]

    def at(self, features_dir: Path) -> "Corpus":
        """The same corpus with its states elsewhere."""
        return replace(self, features_dir=features_dir)

    def train(
        self,
        run_dir: Path,
        depth: int = 3,
        store: str | None = None,
        speculator: SpeculatorConfig | None = None,
        launch: bool = False,
        cluster: ClusterConfig | None = None,
        **settings: object,
    ) -> dict:
        """Trains with small defaults, in forked ranks or (`launch`) by the real launcher.

        `store`: a class of stores.py that ranks read instead of the feature store.
        """
        defaults = {
            "row_tokens": 128,
            "epochs": 2,
            "compute": "fp32",
            "learning_rate": 2e-3,
        }
        spec = training_spec(
            run_dir,
            self.target_dir,
            self.features_dir,
            self.parts,
            speculator or SpeculatorConfig(depth=depth),
            TrainingConfig(**(defaults | settings)),
        )
        with contextlib.ExitStack() as patches:
            if not (launch or "launcher" in settings):
                patches.enter_context(patch.object(launcher, "_run", run_forked))
            if store is not None:
                patches.enter_context(patch.dict(os.environ, {STORE: store}))
                for module in (launcher, *([ray_train()] if cluster else [])):
                    patches.enter_context(patch.object(module, "WORKER", STORE_WORKER))
            return launcher.launch_training(spec, cluster)


def ray_train() -> ModuleType:
    """The module that starts ranks on a cluster; it needs Ray."""
    from outrider.training.distributed import ray_train

    return ray_train


def training_spec(
    run_dir: Path,
    target_dir: Path,
    features_dir: Path,
    parts: dict[str, list[str]],
    speculator: SpeculatorConfig,
    training: TrainingConfig,
) -> TrainingSpec:
    """A run in `run_dir` on sequences of these parts, all sampled alike."""
    return TrainingSpec(
        target_dir=target_dir,
        features_dir=features_dir,
        **parts,
        sampling={name: (0.6, 0.95, 0) for part in parts.values() for name in part},
        speculator=speculator,
        training=training,
        out_dir=run_dir / "training",
        publish_dir=run_dir / "speculator",
        log_dir=run_dir / "logs",
    )


@torch.no_grad()
def make_corpus(
    directory: Path,
    train_sequences: int = 18,
    validation_sequences: int = 6,
    broken: str | None = None,
    layers: Sequence[int] = (),
    config: PretrainedConfig | None = None,
) -> Corpus:
    """Responses are greedy ones of the target, so that they can be predicted.

    `broken`: the id of a sequence that gets NaN states. `layers`: auxiliary states that are stored,
    the outputs of these layers. `config`: the target's, by default DeepSeek's.
    """
    target_dir = write_tiny_target(directory / "target", config=config)
    transformers.logging.set_verbosity_error()
    model = AutoModelForCausalLM.from_pretrained(target_dir, dtype=torch.float32).eval()
    torch.manual_seed(1)
    ids = [f"s{number:02d}" for number in range(train_sequences + validation_sequences)]
    outputs: dict[str, torch.Tensor] = {}
    for name, index in ((f"layer_{index}", index) for index in layers):
        layer = model.model.layers[index - 1]
        layer.register_forward_hook(lambda _, __, out, name=name: outputs.update({name: out[0]}))
    streams = tuple(FeatureStream(f"layer_{index}", HIDDEN) for index in layers)
    spec = FeatureSpec(streams).stored(HIDDEN)
    with FeatureWriter(directory / "features", spec, {"test": 1}) as writer:
        for number, sequence_id in enumerate(ids):
            prompt = torch.randint(0, VOCAB, (1, 6 + number % 5))
            text = model.generate(
                prompt, max_new_tokens=20 + number % 7, do_sample=False, eos_token_id=None
            )
            hidden = model.model(text).last_hidden_state[0]
            if sequence_id == broken:
                hidden = hidden.fill_(float("nan"))
            by_name = outputs | {FINAL_NORM: hidden}
            states = SequenceStates(
                token_ids=text[0].int(),
                completion_start=prompt.shape[1],
                streams={name: state_TH.bfloat16() for name, state_TH in by_name.items()},
            )
            writer.write(sequence_id, states)
    parts = {"train": ids[:train_sequences], "validation": ids[train_sequences:]}
    return Corpus(target_dir, directory / "features", parts)
