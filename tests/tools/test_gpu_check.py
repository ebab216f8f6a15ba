"""`make gpu-check` in parts: those that passed are left out, others run again, all are merged."""

import ast
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import gpu_check

PASSES = """
import pytest

@pytest.mark.gpu
def test_one(record_property):
    record_property("tokens_per_s", 12.5)

@pytest.mark.gpu
def test_two():
    pytest.skip("no GPU")
"""
FAILS_ONCE = """
import os, pathlib, pytest

@pytest.mark.slow
def test_it():
    runs = pathlib.Path(os.environ["OUTRIDER_GPU_CHECK"])
    runs.mkdir(exist_ok=True)
    seen = runs / "seen"
    was_seen = seen.exists()
    seen.touch()
    assert was_seen
"""
HANGS = """
import pathlib, time, pytest

@pytest.mark.slow
def test_first():
    pass

@pytest.mark.slow
def test_second():
    pathlib.Path(__file__).with_name("hangs").touch()
    time.sleep(600)
"""


@pytest.fixture
def checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of checks in place of tests/gpu."""
    folder = tmp_path / "checks"
    folder.mkdir()
    monkeypatch.setattr(gpu_check, "CHECKS", folder)
    monkeypatch.setattr(gpu_check, "gpu_names", lambda: ["NVIDIA H200"])
    return folder


def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *parts: str) -> tuple[int, dict]:
    """Exit status and merged record."""
    out = tmp_path / "gpu_check"
    monkeypatch.setattr(sys, "argv", ["gpu_check", *parts, "--out", str(out)])
    status = gpu_check.main()
    return status, json.loads(out.with_suffix(".json").read_text())


def test_only_parts_that_have_not_passed_run_again(checks, tmp_path, monkeypatch, capfd):
    (checks / "test_attention.py").write_text(PASSES)
    (checks / "test_demo.py").write_text(FAILS_ONCE)
    status, merged = check(tmp_path, monkeypatch)
    outcomes = {name: record["outcome"] for name, record in merged["parts"].items()}
    assert status == 1 and outcomes == {"attention": "passed", "demo": "failed"}
    one, two = merged["parts"]["attention"]["tests"]
    assert one["figures"] == {"tokens_per_s": "12.5"} and two["outcome"] == "skipped"
    assert merged["gpus"] == ["NVIDIA H200"] and "torch" in merged["versions"]
    capfd.readouterr()
    status, merged = check(tmp_path, monkeypatch)
    assert status == 0
    started = [line for line in capfd.readouterr().out.splitlines() if "gpu-check: " in line]
    assert started == ["gpu-check: demo"]
    # On another GPU, or with other sources, nothing is done.
    monkeypatch.setattr(gpu_check, "gpu_names", lambda: ["NVIDIA L4"])
    assert not any(
        gpu_check.is_done(record, gpu_check.machine()) for record in merged["parts"].values()
    )


@pytest.fixture(params=["foreground", "background"])
def started_in(request: pytest.FixtureRequest) -> Iterator[None]:
    """A shell starts `command &` with SIGINT ignored."""
    handler = signal.getsignal(signal.SIGINT)
    background = request.param == "background"
    signal.signal(signal.SIGINT, signal.SIG_IGN if background else signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, handler)


@pytest.mark.usefixtures("started_in")
def test_a_part_that_is_out_of_time_keeps_the_tests_before(checks, tmp_path, monkeypatch):
    (checks / "test_servers.py").write_text(HANGS)
    wait = subprocess.Popen.wait

    def until_it_hangs(process, timeout=None):
        """The limit is reached in the second test, however long pytest takes to start."""
        if timeout != gpu_check.LIMIT_S:
            return wait(process, timeout)
        while not (checks / "hangs").exists():
            assert process.poll() is None
            time.sleep(0.1)
        raise subprocess.TimeoutExpired("servers", timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", until_it_hangs)
    status, merged = check(tmp_path, monkeypatch)
    record = merged["parts"]["servers"]
    assert status == 1 and record["outcome"] == "out of time"
    assert ("test_first", "passed") in {(test["name"], test["outcome"]) for test in record["tests"]}


def test_an_unknown_part_is_named(checks, tmp_path, monkeypatch, capsys):
    (checks / "test_servers.py").write_text(PASSES)
    with pytest.raises(SystemExit):
        check(tmp_path, monkeypatch, "server")
    assert "server: no such part; the parts are servers" in capsys.readouterr().err


def test_each_check_has_a_twin_or_says_why_not() -> None:
    """A check that no CPU runs can rot."""
    lonely = []
    for path in gpu_check.CHECKS.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef) or not node.name.startswith("test_"):
                continue
            twin_of_itself = any(argument.arg == "on_gpu" for argument in node.args.args)
            words = ast.get_docstring(node) or ""
            if not twin_of_itself and "Twin" not in words and "No twin: " not in words:
                lonely.append(f"{path.name}::{node.name}")
    assert not lonely
