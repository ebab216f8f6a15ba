"""Logs damaged towards code that no log has reached yet, through every reader: benchmarks/fuzz.py, led by coverage (atheris, libFuzzer).

    pip install atheris                                          # not among the pins: this alone needs it
    nice -n 19 python -m benchmarks.fuzz_coverage [--seconds 600] [--corpus build/fuzz]

It starts from the golden logs; the first byte of an input names its format. What reached new code is kept in `--corpus`, and a later
run goes on from there. An input that crashes a reader, loses a row or has one twice ends it, and is written to a file that is named.
"""

import argparse
import faulthandler
import os
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["outrider.data"], enable_loader_override=False):
    from outrider.common.errors import OutriderError
    from outrider.data.formats import FORMATS
    from tests.data.mutations import checked, golden_files, one_file


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--corpus", type=Path, default=Path("build/fuzz"))
    args = parser.parse_args()
    faulthandler.enable()
    args.corpus.mkdir(parents=True, exist_ok=True)
    files = golden_files()
    for place, (_, golden) in enumerate(files):
        (args.corpus / f"golden-{place}").write_bytes(bytes([place]) + golden.read_bytes())
    scratch = Path(tempfile.mkdtemp(prefix="outrider-"))
    counts = {"logs": 0, "rows": 0, "refused": 0}

    def one_log(data: bytes) -> None:
        """`checked` fails where a row is lost or there twice."""
        if not data:
            return
        name, golden = files[data[0] % len(files)]
        path = scratch / golden.name
        path.write_bytes(data[1:])
        counts["logs"] += 1
        for format_name in dict.fromkeys((name if name in FORMATS else "auto", "auto")):
            try:
                rows, _ = checked(one_file(path), format_name, scratch)
                counts["rows"] += rows
            except (
                OutriderError
            ):  # a damaged container (Parquet, Arrow), of whose rows nobody can say anything
                counts["refused"] += 1
        if counts["logs"] % 1000 == 0:
            print(counts, file=sys.stderr, flush=True)

    artifacts = f"-artifact_prefix={args.corpus}{os.sep}crash-"
    options = [
        sys.argv[0],
        str(args.corpus),
        f"-max_total_time={args.seconds}",
        "-max_len=65536",
        "-timeout=30",
        artifacts,
    ]
    atheris.Setup(options, one_log)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
