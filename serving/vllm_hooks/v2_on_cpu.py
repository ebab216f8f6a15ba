"""Runs a module with vLLM's model runner V2 on a CPU, its kernels in Triton's interpreter.

    python -m outrider.serving.vllm_hooks.v2_on_cpu \
        outrider.eval.replay.draft_parity TARGET SPECULATOR 4 prompts.jsonl

V2 is the default on a GPU and needs Triton, which compiles for GPUs only. The interpreter computes
the same kernels with numpy, milliseconds each: enough to rehearse every hook on V2, not to measure
speed. vLLM uses Triton on a CPU only if Triton has a backend named `cpu`, so an empty one is added
before vLLM is imported; the engine's processes are forked, so that they have it too.
"""

import os
import runpy
import sys

from outrider.serving.vllm_hooks import process_start


class _Driver:
    """What vLLM asks of a Triton backend's driver."""

    @staticmethod
    def is_active() -> bool:
        return True


def install() -> None:
    """Prepares this process; vLLM and Triton must not have been imported."""
    if "vllm" in sys.modules or "triton" in sys.modules:
        raise RuntimeError("model runner V2 on a CPU must be chosen before vLLM is imported")
    os.environ |= {
        "TRITON_INTERPRET": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "OMP_NUM_THREADS": "1",  # forked processes keep one thread
        process_start.FORK: "1",
    }
    from triton import backends

    backends.backends["cpu"] = backends.Backend(None, _Driver)


def main() -> None:
    """Runs the module named by the first argument with the others."""
    install()
    _, module, *arguments = sys.argv
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
