"""Capture compared with plain prefill: tokens/s on the same prompts.

    python benchmarks/capture.py [--run runs/resume_screening] [--sequences 200] [--repeats 6]
        [--batch-tokens 8192] [--disk 2] [--layers 2 8 13]

Blocks alternate in one engine, because separately started engines differ by more than the effect.
"captured" includes the transfer of states from the worker to checksummed shards on disk. `--disk N`
simulates a disk with N times the needed rate: a shard takes bytes / (N x bytes per token x tokens/s
of plain prefill). "plain" gets its prompts in the same batches. With `--layers`, "layers" also
captures the states before these layers, on the same disk.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from outrider.data.config import CaptureConfig, bytes_per_token
from outrider.data.features.capture import capture_ids
from outrider.data.features.feature_writer import FeatureWriter
from outrider.data.sequences import load_sequences
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import batches_by_tokens, open_engine
from outrider.speculators.features import FeatureSpec, FeatureStream, layer_name

write_private = FeatureWriter._write_private


def slow_disk(bytes_per_s: float) -> None:
    """Slows down the writing of shards to a disk's rate."""

    def write(path: Path, content: bytes) -> None:
        began = time.monotonic()
        write_private(path, content)
        time.sleep(max(len(content) / bytes_per_s - (time.monotonic() - began), 0))

    FeatureWriter._write_private = staticmethod(write)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--run", type=Path, default=Path("runs/resume_screening"), help="a run after ingest"
    )
    parser.add_argument("--sequences", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=6)
    parser.add_argument("--batch-tokens", type=int, default=65536)
    parser.add_argument("--shard-megabytes", type=float, default=0.1)
    parser.add_argument("--disk", type=float, help="disk rate / needed rate")
    parser.add_argument("--layers", type=int, nargs="*", default=[], help="auxiliary layers")
    args = parser.parse_args()
    settings = CaptureConfig(batch_tokens=args.batch_tokens).model_copy(
        update={"shard_megabytes": args.shard_megabytes}
    )
    table = load_sequences(args.run / "traffic" / "sequences").select(range(args.sequences))
    rows = [(row["sequence_id"], row["token_ids"], row["completion_start"]) for row in table]
    tokens = sum(len(ids) for _, ids, _ in rows)
    seconds: dict[str, list[float]] = {"plain": [], "captured": []}
    with (
        open_engine(TargetConfig(), EngineConfig()) as engine,
        tempfile.TemporaryDirectory() as folder,
    ):
        from vllm import SamplingParams

        def plain() -> None:
            once = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
            for batch in batches_by_tokens(rows, settings.batch_tokens):
                prompts = [{"prompt_token_ids": ids} for _, ids, _ in batch]
                engine.llm.generate(prompts, once, use_tqdm=False)

        hidden_size = engine.llm.llm_engine.model_config.get_hidden_size()
        layers = FeatureSpec(
            tuple(FeatureStream(layer_name(index), hidden_size) for index in args.layers)
        )

        def captured(features: FeatureSpec) -> None:
            if args.disk and seconds["plain"]:
                needed = bytes_per_token(hidden_size, "bf16")
                slow_disk(args.disk * needed * tokens / statistics.median(seconds["plain"]))
            store = Path(folder) / str(time.monotonic_ns())
            capture_ids(
                engine=engine, rows=rows, out_dir=store, capture=settings, features=features
            )
            shutil.rmtree(store)

        blocks = {"plain": plain, "captured": lambda: captured(FeatureSpec(()))}
        if args.layers:
            blocks["layers"] = lambda: captured(layers)
            seconds["layers"] = []
        for repeat in range(args.repeats + 1):
            for name, block in blocks.items():
                start = time.monotonic()
                block()
                if repeat:  # the first round warms up
                    seconds[name].append(time.monotonic() - start)
    print(json.dumps(summary(seconds, tokens)))


def summary(seconds: dict[str, list[float]], tokens: int) -> dict[str, object]:
    """Each block's speed and the ratios of the blocks' speeds, round by round."""
    result: dict[str, object] = {"tokens_a_block": tokens}
    for name, times in seconds.items():
        result[f"{name}_tokens_per_s"] = round(tokens / statistics.median(times))
    for name, base in (("captured", "plain"), ("layers", "plain"), ("layers", "captured")):
        if name in seconds:
            pairs = zip(seconds[base], seconds[name], strict=True)
            ratios = [base_s / block_s for base_s, block_s in pairs]
            result[f"{name}_over_{base}"] = round(statistics.median(ratios), 3)
            result[f"{name}_over_{base}_ratios"] = [round(ratio, 3) for ratio in ratios]
    return result


if __name__ == "__main__":
    main()
