"""Damaged logs through every reader: crashes, lost rows, time and memory.

    nice -n 19 python -m benchmarks.fuzz [--lines 100000] [--seed 0]

The short form is tests/data/formats/test_fuzz.py. Each golden log is damaged at random
(tests/data/mutations.py) and read in its own format, the recognized one and any other. Every
exchange goes through the embedded target's template and tokenizer. A crash prints its seed.
"""

import argparse
import collections
import faulthandler
import json
import random
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.data.exchange import Exchange, Reject
from outrider.data.formats import FORMATS
from outrider.data.tokenize.tokens import SequenceBuilder
from outrider.recipes import nano_r1
from tests.data.mutations import checked, golden_files, mutated, one_file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    faulthandler.enable()  # C libraries may crash the process
    files = golden_files()
    contents = [path.read_bytes() for _, path in files]
    builder = SequenceBuilder(Path(nano_r1.__file__).parent / "target")
    counts: collections.Counter[str] = collections.Counter()
    reasons: collections.Counter[str] = collections.Counter()
    slowest = 0.0
    began = time.monotonic()
    seed = args.seed
    with tempfile.TemporaryDirectory() as scratch:
        while counts["lines"] < args.lines:
            for (name, golden), content in zip(files, contents, strict=True):
                seed += 1
                rng = random.Random(seed)
                path = Path(scratch) / golden.name
                path.write_bytes(mutated(rng, content, contents))
                formats = (name if name in FORMATS else "auto", "auto", rng.choice(list(FORMATS)))
                start = time.monotonic()
                # Any exception is a finding: catch, print and count it.
                try:
                    for format_name in formats:
                        rows, outcomes = checked(one_file(path), format_name, Path(scratch))
                        counts["rows"] += rows
                        count(outcomes, builder, counts, reasons)
                except OutriderError:  # a damaged container (Parquet, Arrow): no rows to count
                    counts["refused_files"] += 1
                except Exception as error:
                    counts["unbalanced" if isinstance(error, AssertionError) else "crashes"] += 1
                    print(f"seed {seed}, {golden}", file=sys.stderr)
                    traceback.print_exc()
                counts["lines"] += path.read_bytes().count(b"\n") + 1
                counts["logs"] += 1
                slowest = max(slowest, time.monotonic() - start)
    print(
        json.dumps(
            {
                "lines": counts["lines"],
                "logs": counts["logs"],
                "formats": list(FORMATS),
                "refused_files": counts["refused_files"],
                "rows": counts["rows"],
                "crashes": counts["crashes"],
                "unbalanced": counts["unbalanced"],
                "exchanges": counts["exchanges"],
                "sequences": counts["sequences"],
                "rejects": reasons.total(),
                "reasons": dict(reasons.most_common()),
                "seconds": round(time.monotonic() - began, 1),
                "slowest_log_seconds": round(slowest, 2),
                "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            }
        )
    )


def count(
    outcomes: list[Exchange | Reject],
    builder: SequenceBuilder,
    counts: collections.Counter[str],
    reasons: collections.Counter[str],
) -> None:
    """Adds the outcomes of one log."""
    for outcome in outcomes:
        if isinstance(outcome, Reject):
            reasons[outcome.reason] += outcome.rows
            continue
        counts["exchanges"] += 1
        try:
            builder.build(outcome)
            counts["sequences"] += 1
        except Reject as reject:
            reasons[reject.reason] += 1


if __name__ == "__main__":
    main()
