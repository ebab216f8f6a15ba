"""Start the Kimi-K2 endpoint on the 8xB200 box."""
import json
import os
import subprocess
import sys

MODEL = "moonshotai/Kimi-K2-Thinking"
SERVED_NAME = "kimi-k2"
TP = 8

SPECULATIVE = {
    "method": "eagle3",
    "model": "AQ-MedAI/Kimi-K2-Thinking-eagle3",
    "num_speculative_tokens": 3,
}


def main() -> int:
    env = os.environ.copy()
    env["HF_HOME"] = "/raid/hf"
    env["VLLM_USE_FLASHINFER_MOE_FP4"] = "0"
    cmd = [
        "vllm", "serve", MODEL,
        "--served-model-name", SERVED_NAME,
        "--tensor-parallel-size", str(TP),
        "--trust-remote-code",
        "--max-model-len", "131072",
        "--max-num-batched-tokens", "16384",
        "--gpu-memory-utilization", "0.9",
        "--enable-auto-tool-choice",
        "--tool-call-parser", "kimi_k2",
        "--reasoning-parser", "kimi_k2",
        "--speculative-config", json.dumps(SPECULATIVE),
        "--port", "8000",
    ]
    print("starting:", " ".join(cmd), flush=True)
    return subprocess.call(cmd, env=env)


if __name__ == "__main__":
    sys.exit(main())
