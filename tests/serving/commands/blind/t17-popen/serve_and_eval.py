"""Start a vLLM server, wait for it, run the regression prompts, stop it."""
import argparse
import json
import os
import shlex
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass, field


@dataclass
class Speculation:
    method: str = "eagle3"
    model: str | None = "RedHatAI/Qwen3-30B-A3B-Instruct-2507-speculator.eagle3"
    tokens: int = 3

    def as_json(self) -> str:
        d = {"method": self.method, "num_speculative_tokens": self.tokens}
        if self.model:
            d["model"] = self.model
        return json.dumps(d)


@dataclass
class Server:
    model: str
    tp: int = 1
    ctx: int = 40_960
    port: int = 8011
    speculation: Speculation | None = field(default_factory=Speculation)

    def command(self) -> list[str]:
        cmd = [
            sys.executable, "-m", "vllm.entrypoints.openai.api_server",
            "--model", self.model,
            f"--tensor-parallel-size={self.tp}",
            "--max-model-len", str(self.ctx),
            "--port", str(self.port),
            "--kv-cache-dtype", "fp8_e4m3",
            "--gpu-memory-utilization", "0.9",
            "--max-num-batched-tokens", str(8 * 1024),
        ]
        if self.speculation is not None:
            cmd += ["--speculative-config", self.speculation.as_json()]
        return cmd


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--model", default="Qwen/Qwen3-30B-A3B-Instruct-2507")
    ap.add_argument("--tp", type=int, default=2)
    ap.add_argument("--no-spec", action="store_true")
    ap.add_argument("--prompts", default="prompts.jsonl")
    args = ap.parse_args()

    server = Server(args.model, tp=args.tp, ctx=32_768)
    if args.no_spec:
        server.speculation = None
    cmd = server.command()
    print("+", shlex.join(cmd), flush=True)
    env = {**os.environ, "VLLM_USE_FLASHINFER_SAMPLER": "0", "CUDA_VISIBLE_DEVICES": "0,1"}
    proc = subprocess.Popen(cmd, env=env)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health", timeout=2)
                break
            except OSError:
                if proc.poll() is not None:
                    raise SystemExit(f"server ended with {proc.returncode}")
                time.sleep(2)
        subprocess.run([sys.executable, "run_prompts.py", "--base-url", f"http://127.0.0.1:{server.port}/v1",
                        "--model", args.model, "--max-tokens", "512", args.prompts], check=True)
    finally:
        proc.terminate()
        proc.wait()


if __name__ == "__main__":
    main()
