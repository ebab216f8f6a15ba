"""A capture replica before its engine starts."""

import dataclasses
import os

import pytest

from outrider.data.features.replica import CaptureReplica, ReplicaSetup
from tests.data.features.recorded_replica import SETUP


def test_an_engine_on_another_node_has_the_command_s_variables(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `serving.engine.environment` documents; a raylet has those of its own start."""
    monkeypatch.setenv("VLLM_USE_DEEP_GEMM", "0")
    names = [field.name for field in dataclasses.fields(SETUP) if field.name != "environment"]
    setup = ReplicaSetup(**{name: getattr(SETUP, name) for name in names})
    monkeypatch.delenv("VLLM_USE_DEEP_GEMM")
    CaptureReplica(setup)
    assert os.environ.pop("VLLM_USE_DEEP_GEMM") == "0"
