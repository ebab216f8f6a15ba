"""Environment variables of the command that its processes on other nodes need too.

    forwarded_variables(OF_ENGINES)      # in the command
    set_missing_variables(variables)           # in a process that is an engine's own

Ray starts processes with the environment of their node's raylet. These variables go through Ray's
object store, since Ray logs runtime environments. Variables that are set on a node take precedence.
"""

import os
from collections.abc import Mapping

OF_ENGINES = ("VLLM_", "NCCL_", "GLOO_", "TORCH_", "PYTORCH_", "HF_")
"""Prefixes of variables that change what an engine computes, or where it reads models."""

OF_RANKS = ("NCCL_", "GLOO_", "TORCH_", "PYTORCH_", "HF_", "WANDB_", "OUTRIDER_", "PYTHONWARNINGS")
"""Prefixes of variables for the processes of a training."""

OF_ONE_NODE = frozenset(("VLLM_HOST_IP", "VLLM_PORT"))
"""Variables that are true of the command's node only."""


def forwarded_variables(prefixes: tuple[str, ...]) -> dict[str, str]:
    """The variables of this process that begin with one of the prefixes."""
    return {
        name: value
        for name, value in os.environ.items()
        if name.startswith(prefixes) and name not in OF_ONE_NODE
    }


def set_missing_variables(variables: Mapping[str, str]) -> None:
    """Sets the variables that are not set in this process."""
    for name, value in variables.items():
        os.environ.setdefault(name, value)
