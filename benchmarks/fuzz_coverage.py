"""Coverage-guided fuzzing of every reader with atheris (libFuzzer).

    pip install atheris                                # only this script needs it
    nice -n 19 python -m benchmarks.fuzz_coverage [--seconds 600] [--corpus build/fuzz]

Starts from the golden logs; the first byte of an input selects its format. Inputs that reach new
code are kept in `--corpus`, and a later run continues from there. An input that crashes a reader,
loses a row or yields one twice stops the run and is written to a file.
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
        """Reads one log; `checked` fails if a row is lost or used twice."""
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
            except OutriderError:  # a damaged container (Parquet, Arrow): no rows to count
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
