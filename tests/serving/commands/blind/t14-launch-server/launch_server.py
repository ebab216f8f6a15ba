"""Start the vLLM server and wait until it is healthy."""
import argparse
import os
import subprocess
import sys
import time

import requests

DEFAULT_MODEL = "ByteDance-Seed/Seed-OSS-36B-Instruct"


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--model", default=DEFAULT_MODEL)
    p.add_argument("--tp", type=int, default=2)
    p.add_argument("--max-len", type=int, default=131072)
    p.add_argument("--port", type=int, default=8000)
    return p.parse_args()


def main():
    args = parse_args()
    env = os.environ.copy()
    env["CUDA_VISIBLE_DEVICES"] = "0,1"
    cmd = [
        sys.executable, "-m", "vllm.entrypoints.openai.api_server",
        "--model", args.model,
        "--served-model-name", "seed-oss",
        "--tensor-parallel-size", str(args.tp),
        "--max-model-len", str(args.max_len),
        "--max-num-seqs", "40",
        "--dtype", "bfloat16",
        "--trust-remote-code",
        "--reasoning-parser", "seed_oss",
        "--enable-auto-tool-choice",
        "--tool-call-parser", "seed_oss",
        "--port", str(args.port),
    ]
    proc = subprocess.Popen(cmd, env=env)
    for _ in range(240):
        try:
            if requests.get(f"http://localhost:{args.port}/health", timeout=2).ok:
                break
        except requests.RequestException:
            time.sleep(5)
    proc.wait()


if __name__ == "__main__":
    main()
