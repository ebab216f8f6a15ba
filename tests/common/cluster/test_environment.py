"""Which variables of a command reach its processes on other nodes, and that a node's own stay."""

import os

import pytest

from outrider.common.cluster.environment import (
    OF_ENGINES,
    OF_RANKS,
    forwarded_variables,
    set_missing_variables,
)

VARIABLES = {
    "NCCL_SOCKET_IFNAME": "eth0",
    "PYTORCH_ALLOC_CONF": "backend:native",
    "VLLM_USE_DEEP_GEMM": "0",
    "VLLM_HOST_IP": "10.0.0.1",
    "WANDB_API_KEY": "key",
    "CUDA_VISIBLE_DEVICES": "3",
}


@pytest.fixture(autouse=True)
def command(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in VARIABLES.items():
        monkeypatch.setenv(name, value)


def test_engines_and_ranks_get_what_they_read() -> None:
    ours = {
        prefixes: forwarded_variables(prefixes).keys() & VARIABLES.keys()
        for prefixes in (OF_ENGINES, OF_RANKS)
    }
    both = {"NCCL_SOCKET_IFNAME", "PYTORCH_ALLOC_CONF"}
    assert ours == {OF_ENGINES: both | {"VLLM_USE_DEEP_GEMM"}, OF_RANKS: both | {"WANDB_API_KEY"}}


def test_a_node_s_own_variables_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    variables = forwarded_variables(OF_ENGINES)
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "bond0")
    monkeypatch.delenv("VLLM_USE_DEEP_GEMM")
    set_missing_variables(variables)
    assert os.environ["NCCL_SOCKET_IFNAME"] == "bond0"
    assert os.environ["VLLM_USE_DEEP_GEMM"] == "0"
