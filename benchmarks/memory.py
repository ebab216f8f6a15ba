"""Predicted against measured memory of training.

    python -m benchmarks.memory --target nano_r1 --row-tokens 2048 --depth 5
    python -m benchmarks.memory --target r1_8_experts --row-tokens 128 --depth 2 [--vocab 129280]

Runs two real steps of the trainer in a watched process: ZeRO-1, bf16. `r1_8_experts` is an MTP
layer of R1's dimensions with 8 experts and random weights. Measured is RssAnon every 5 ms (file
pages can be reclaimed) in two phases: the start with step-0 parity, and the steps; the second
step has optimizer states. Rows are packed from sequences of at most 400 tokens, 150 (or half) of
them response. `before` is the process with all imports and no data; DeepSpeed imports more later.
Prints one line of JSON. Does not start with less than 1.05 times the predicted memory available.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from safetensors.torch import save_file

from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.data.features.feature_store import FeatureStore
from outrider.data.features.feature_writer import FeatureWriter
from outrider.serving.config import TargetConfig
from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.kinds.mtp.layer import MTPSpeculator
from outrider.speculators.kinds.mtp.size import mtp_size
from outrider.speculators.kinds.protocol import RowShape
from outrider.speculators.layers.deepseek_layer import DeepseekArch
from outrider.training.config import TrainingConfig
from outrider.training.distributed.launch import train
from outrider.training.sizing.memory import MemoryPlan
from tests.r1_config import R1


class Store(FeatureStore):
    """A feature store that records the process's memory when its manifest is first read.

    All modules are imported then, and no data is loaded.
    """

    @property
    def manifest(self) -> dict[str, Any]:
        note = self.directory / "before.txt"
        if not note.exists():
            note.write_text(str(own_memory("self")))
        return self._manifest

    @manifest.setter
    def manifest(self, value: dict[str, Any]) -> None:
        self._manifest = value


def own_memory(process: int | str) -> int:
    """RssAnon in bytes; 0 for an ended process."""
    try:
        status = Path(f"/proc/{process}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((1024 * int(line.split()[1]) for line in status if line.startswith("RssAnon")), 0)


def write_r1_layer(directory: Path, vocab: int) -> Path:
    """config.json, MTP layer, embedding and head: all that training reads."""
    from outrider.speculators.kinds.mtp.checkpoint import save_mtp

    config = R1 | {"n_routed_experts": 8, "n_group": 1, "topk_group": 1, "vocab_size": vocab}
    config.pop("quantization_config")
    write_json(directory / "source" / "config.json", config)
    torch.manual_seed(0)
    layer = MTPSpeculator(DeepseekArch.from_config(config)).bfloat16()
    for module in layer.modules():
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, buffer.float())
    save_mtp(layer, directory / "source", directory / "target")
    del layer
    ends = {
        name: torch.randn(vocab, config["hidden_size"]).mul_(0.02).bfloat16()
        for name in ("model.embed_tokens.weight", "lm_head.weight")
    }
    save_file(ends, directory / "target" / "ends.safetensors")
    layer_file = directory / "target" / "model.safetensors"
    from safetensors import safe_open

    with safe_open(layer_file, framework="pt") as file:
        weight_map = dict.fromkeys(file.keys(), layer_file.name) | dict.fromkeys(
            ends, "ends.safetensors"
        )
    write_json(directory / "target" / "model.safetensors.index.json", {"weight_map": weight_map})
    return directory / "target"


def write_states(
    directory: Path, config: dict[str, Any], row_tokens: int
) -> tuple[dict[str, list[str]], RowShape]:
    """Random states: one row for training, one for validation."""
    length = min(400, row_tokens)
    response = min(150, length // 2)
    count = row_tokens // length
    parts = {
        part: [f"{part}-{index}" for index in range(count)] for part in ("train", "validation")
    }
    torch.manual_seed(1)
    with FeatureWriter(directory, config["hidden_size"], {"states": "random"}) as writer:
        for name in [*parts["train"], *parts["validation"]]:
            token_ids = torch.randint(0, config["vocab_size"], (length,))
            writer.write(
                name, token_ids, torch.randn(length, config["hidden_size"]), length - response
            )
    # Anchors run from the token before the response to the third from its end.
    return parts, RowShape.of_sequences([(length, response - 1)] * count)


class Watch(threading.Thread):
    """Records the worker's peak memory per phase and kills it after the second step."""

    def __init__(self, metrics: Path):
        super().__init__(daemon=True)
        self.metrics, self.peak = metrics, {"start": 0, "steps": 0}

    def run(self) -> None:
        while (worker := self._worker()) is None:
            time.sleep(0.05)
        while memory := own_memory(worker.pid):
            lines = self.metrics.read_text().splitlines() if self.metrics.exists() else []
            phase = "steps" if lines else "start"
            self.peak[phase] = max(self.peak[phase], memory)
            if sum('"loss"' in line for line in lines) >= 2:
                worker.kill()
                return
            time.sleep(0.005)

    @staticmethod
    def _worker() -> psutil.Process | None:
        for child in psutil.Process().children(recursive=True):
            if "outrider.training.distributed.worker" in child.cmdline():
                return child
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", choices=["nano_r1", "r1_8_experts"], default="nano_r1")
    parser.add_argument("--row-tokens", type=int, default=2048)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--vocab", type=int, default=129280, help="vocabulary of r1_8_experts")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="memory-") as folder:
        work = Path(folder)
        nano = args.target == "nano_r1"
        config = read_json(TargetConfig().directory() / "config.json") if nano else None
        config = config or R1 | {"n_routed_experts": 8, "vocab_size": args.vocab}
        size = mtp_size(config)
        length = min(400, args.row_tokens)
        row = RowShape.of_sequences(
            [(length, min(150, length // 2) - 1)] * (args.row_tokens // length)
        )
        plan = MemoryPlan(size, row, args.row_tokens, args.depth, device="cpu")
        needed, free = plan.peak()[1], psutil.virtual_memory().available
        if 1.05 * needed > free:
            raise SystemExit(
                f"predicted {needed / 1e9:.1f} GB, available {free / 1e9:.1f} GB: not started"
            )
        target = TargetConfig().directory() if nano else write_r1_layer(work, args.vocab)
        parts, same_row = write_states(work / "states", config, args.row_tokens)
        assert same_row == row
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH", "")]
        )
        watch = Watch(work / "logs" / "metrics.jsonl")
        watch.start()
        settings = TrainingConfig(
            epochs=2,
            rows_per_step=1,
            row_tokens=args.row_tokens,
            evaluate_every=1000,
            parity="warn",
            wandb_project=None,
        )
        sampling = {name: (0.6, 0.95) for names in parts.values() for name in names}
        speculator = SpeculatorConfig(depth=args.depth)
        try:
            train(
                target,
                work / "states",
                sampling,
                parts,
                speculator,
                settings,
                work / "out",
                work / "best",
                work / "logs",
                feature_store="benchmarks.memory:Store",
            )
        except OutriderError as error:
            if "signal 9" not in str(error):
                raise
        watch.join()
        before = int((work / "states" / "before.txt").read_text())
        phases = {phase: sum(parts.values()) for phase, parts in plan.phases().items()}
        predicted = {"start": phases["start"], "steps": max(phases["backward"], phases["update"])}
        measured = watch.peak
        errors = {phase: round(predicted[phase] / measured[phase] - 1, 3) for phase in predicted}
        print(
            json.dumps(
                {
                    "target": args.target,
                    "parameters": size.total,
                    "row_tokens": args.row_tokens,
                    "depth": args.depth,
                    "vocab": size.vocab,
                    "before_mb": round(before / 1e6),
                    "predicted_mb": {
                        phase: round(value / 1e6) for phase, value in predicted.items()
                    },
                    "measured_mb": {phase: round(value / 1e6) for phase, value in measured.items()},
                    "error": errors,
                    "phases_mb": {
                        phase: {part: round(value / 1e6, 1) for part, value in parts.items()}
                        for phase, parts in plan.phases().items()
                    },
                }
            )
        )


if __name__ == "__main__":
    main()
