"""The demo, from its log to its verdict."""

import json

import pytest

from outrider.eval.config import EXIT_CODES
from tests.cli.commands import run
from tests.pipeline.test_whole_runs import SMALL

pytestmark = pytest.mark.engine

AS_SHIPPED = ("speculator.kind=[mtp,lookup]",)
"""As `make demo`."""


def test_the_demo_reaches_its_verdict(on_gpu, runs, record_property):
    """Whole on a GPU, small on a CPU."""
    settings = AS_SHIPPED if on_gpu else (*SMALL, "training.epochs=1")
    words = ("train", "resume_screening", "name=demo", *settings)
    finished = run("outrider", *words, cwd=runs)
    assert finished.returncode in EXIT_CODES.values(), finished.stderr
    result = json.loads(finished.stdout)
    record_property("verdict", result["verdict"])
    record_property("acceptance_length", json.dumps(result["acceptance_length"]))
    record_property("tokens_per_s", json.dumps(result["tokens_per_s"]))
