"""A second kind of drafter for tests: a small linear layer that reads two states of the target.

It differs from MTP wherever the protocol lets kinds differ: an auxiliary stream, a vocabulary of
every second token, a head of its own that is trained, no attention, training from scratch, and a
config.json and tensors of its own layout.
"""

import dataclasses
import json
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from outrider.common.files import publish, read_json
from outrider.data.features.feature_store import FeatureStore
from outrider.data.features.feature_writer import FeatureWriter
from outrider.speculators.features import FINAL_NORM, FeatureSpec, FeatureStream
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.heads import DraftHead, TargetEnds
from outrider.speculators.kinds import KINDS
from outrider.speculators.kinds.drafter import Drafter
from outrider.speculators.kinds.protocol import (
    Abilities,
    KPerBatchSize,
    Origin,
    TrainableKind,
    TrainedParts,
)
from outrider.training.distributed.spec import TrainingSpec
from tests.training.corpus import Corpus, make_corpus
from tests.training.forked_ranks import PRELOADED

STREAM, WIDTH = "layer_1", 4
"""The auxiliary stream."""


class ToyDrafter(Drafter):
    """u = mix [E(next token) ; state]; the first state is read from both streams."""

    def __init__(self, hidden: int, ids: Tensor) -> None:
        super().__init__()
        self.read = nn.Linear(WIDTH + hidden, hidden, bias=False)
        self.mix = nn.Linear(2 * hidden, hidden, bias=False)
        self.lm_head = nn.Parameter(torch.zeros(len(ids), hidden))
        self.register_buffer("ids", ids)

    def unroll(
        self,
        ends: TargetEnds,
        token_ids_BT: Tensor,
        inputs_BTX: Tensor,
        sequence_BT: Tensor,
        position_BT: Tensor,
        anchor_BT: Tensor,
        depth: int,
    ) -> tuple[Tensor, list[Tensor]]:
        anchors_N = anchor_BT.flatten().nonzero().squeeze(1).to(inputs_BTX.device)
        token = token_ids_BT.flatten()
        dtype = ends.dtype
        state_NH = self.read(inputs_BTX.flatten(0, 1)[anchors_N].to(dtype))
        states = []
        for s in range(depth):
            known = token[(anchors_N + 1 + s).clamp(max=len(token) - 1)]
            state_NH = torch.tanh(self.mix(torch.cat([ends.embed(known), state_NH], dim=-1)))
            states.append(state_NH)
        return anchors_N, states

    def head(self, ends: TargetEnds) -> DraftHead:
        return DraftHead(self.lm_head, self.ids)


class Toy(TrainableKind):
    """The kind."""

    name = "toy"
    in_words = "a toy drafter"
    directory_in_words: str | None = "a toy directory (config.json with toy_drafter)"
    abilities = Abilities(drafts_every_step=True)

    def recognizes(self, config: Mapping[str, Any]) -> bool:
        return "toy_drafter" in config

    def vllm_settings(
        self,
        directory: Path | None,
        k: int,
        draft_sample_method: str,
        k_per_batch_size: KPerBatchSize | None,
    ) -> dict[str, Any] | None:
        return {"method": self.name, "model": str(directory), "num_speculative_tokens": k}

    def config(
        self,
        target_config: Mapping[str, Any],
        head: HeadConfig,
        base_config: Mapping[str, Any] | None,
    ) -> Mapping[str, Any]:
        return base_config or {"toy_drafter": 1}

    def features(self, config: Mapping[str, Any], target_config: Mapping[str, Any]) -> FeatureSpec:
        hidden = target_config["hidden_size"]
        return FeatureSpec((FeatureStream(STREAM, WIDTH), FeatureStream(FINAL_NORM, hidden)))

    def build(
        self, config: Mapping[str, Any], target_config: Mapping[str, Any], source: object
    ) -> ToyDrafter:
        return ToyDrafter(
            target_config["hidden_size"], torch.arange(0, target_config["vocab_size"], 2)
        )

    def load(
        self,
        directory: Path,
        target_dir: Path,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> ToyDrafter:
        tensors = load_file(directory / "model.safetensors")
        drafter = ToyDrafter(read_json(target_dir / "config.json")["hidden_size"], tensors["ids"])
        drafter.load_state_dict(tensors)
        return drafter.to(device=device, dtype=dtype)

    def start(
        self,
        origin: Origin,
        parts: TrainedParts,
        dtype: torch.dtype,
        device: torch.device | str,
        seed: int,
    ) -> ToyDrafter:
        if origin.base_dir is not None:
            return self.load(origin.base_dir, origin.target_dir, dtype, device)
        config = read_json(origin.target_dir / "config.json")
        torch.manual_seed(seed)
        drafter = ToyDrafter(config["hidden_size"], torch.arange(0, config["vocab_size"], 2))
        return drafter.to(device=device, dtype=dtype)

    def write(self, changed: Iterable[tuple[str, Tensor]], origin: Origin, out_dir: Path) -> None:
        tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in changed}
        with publish(out_dir) as temporary:
            temporary.mkdir()
            save_file(tensors, temporary / "model.safetensors")
            (temporary / "config.json").write_text(json.dumps({"toy_drafter": 1}))

    def tensors(self, directory: Path) -> Iterator[tuple[str, Tensor]]:
        yield from sorted(load_file(directory / "model.safetensors").items())

    def swap_tensors(self, directory: Path) -> Iterator[tuple[str, Tensor]]:
        return self.tensors(directory)


def toy_corpus(folder: Path) -> Corpus:
    """The usual corpus, its store with the toy's auxiliary stream."""
    made = make_corpus(folder)
    store = FeatureStore.open(made.features_dir)
    streams = (FeatureStream(STREAM, WIDTH),)
    with FeatureWriter(folder / "states", store.hidden_size, {}, auxiliary=streams) as writer:
        for name in store.sequence_ids:
            row = store.read(name)
            auxiliary = {STREAM: row.hidden[:, :WIDTH] * 0.5}
            writer.write(name, row.token_ids, row.hidden, row.completion_start, None, auxiliary)
    return dataclasses.replace(made, features_dir=folder / "states")


def run_toy(command: list[str], spec: TrainingSpec, log_path: Path) -> tuple[int, bool]:
    """In place of the launcher: one forked rank that knows the kind, as `run_forked` starts one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    rank = context.Process(target=_rank, args=(spec.out_dir / "spec.json", log_path))
    rank.start()
    rank.join()
    return rank.exitcode or 0, False


def _rank(spec_path: Path, log_path: Path) -> None:
    log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    KINDS[Toy.name] = Toy()
    from outrider.training.distributed.worker import main

    sys.exit(main(spec_path))
