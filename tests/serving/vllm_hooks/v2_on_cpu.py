"""Runs a module with vLLM's model runner V2 on a CPU, its kernels in Triton's interpreter.

    python -m tests.serving.vllm_hooks.v2_on_cpu \
        outrider.eval.replay.draft_parity TARGET SPECULATOR 4 prompts.jsonl

V2 is the default on a GPU and needs Triton, which compiles for GPUs only. The interpreter computes
the same kernels with numpy, milliseconds each: enough to rehearse every hook on V2, not to measure
speed. vLLM uses Triton on a CPU only if Triton has a backend named `cpu`, so v2_site/ adds an empty
one when an interpreter starts, in the engine's processes too.
"""

import os
import sys
from pathlib import Path

SITE = Path(__file__).parent / "v2_site"


def main() -> None:
    """Runs the module named by the first argument with the others."""
    paths = [str(SITE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ |= {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "TRITON_INTERPRET": "1",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "OMP_NUM_THREADS": "1",
    }
    os.execv(sys.executable, [sys.executable, "-m", *sys.argv[1:]])


if __name__ == "__main__":
    main()
