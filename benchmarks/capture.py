"""Capture against plain prefill: tokens/s of the same prompts.

    python benchmarks/capture.py [--run runs/resume_screening] [--sequences 200] [--repeats 6]

Blocks alternate in one engine, because separately started engines differ by more than the effect.
"captured" includes everything: states out of the worker, into checksummed shards on disk.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from outrider.data.features.capture import capture_ids
from outrider.data.sequences import load_sequences
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import open_engine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--run", type=Path, default=Path("runs/resume_screening"), help="a run whose ingest is done"
    )
    parser.add_argument("--sequences", type=int, default=200)
    parser.add_argument("--repeats", type=int, default=6)
    args = parser.parse_args()
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
            prompts = [{"prompt_token_ids": ids} for _, ids, _ in rows]
            engine.llm.generate(
                prompts,
                SamplingParams(max_tokens=1, temperature=0.0, detokenize=False),
                use_tqdm=False,
            )

        def captured() -> None:
            capture_ids(engine, rows, Path(folder) / str(time.monotonic_ns()))

        for repeat in range(args.repeats + 1):
            for name, block in (("plain", plain), ("captured", captured)):
                start = time.monotonic()
                block()
                if repeat:  # the first round warms up
                    seconds[name].append(time.monotonic() - start)
    ratios = [p / c for p, c in zip(seconds["plain"], seconds["captured"], strict=True)]
    result = {
        "tokens_a_block": tokens,
        "plain_tokens_per_s": round(tokens / statistics.median(seconds["plain"])),
        "captured_tokens_per_s": round(tokens / statistics.median(seconds["captured"])),
        "captured_over_plain": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
