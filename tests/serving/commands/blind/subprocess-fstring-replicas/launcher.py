#!/usr/bin/env python3
"""Start N replicas of the judge model, one per GPU pair, behind a round-robin proxy."""
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import requests


@dataclass
class Cfg:
    model: str = "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B"
    revision: str | None = None
    tp: int = 2
    replicas: int = 2
    base_port: int = 8200
    ctx: int = 32 * 1024
    max_seqs: int = 56
    mem: float = 0.91
    extra: list[str] = field(default_factory=lambda: ["--enable-prefix-caching", "--dtype", "bfloat16"])


def command(cfg: Cfg, i: int) -> str:
    name = cfg.model.split("/")[-1].lower()
    cmd = (
        f"{sys.executable} -m vllm.entrypoints.openai.api_server "
        f"--model {cfg.model} --served-model-name {name} "
        f"--host 127.0.0.1 --port {cfg.base_port + i} "
        f"--tensor-parallel-size {cfg.tp} "
        f"--max-model-len {cfg.ctx} --max-num-seqs {cfg.max_seqs} "
        f"--gpu-memory-utilization {cfg.mem:.2f} "
        "--reasoning-parser deepseek_r1 "
    )
    if cfg.revision:
        cmd += f"--revision {cfg.revision} "
    return cmd + " ".join(cfg.extra)


def start(cfg: Cfg) -> list[subprocess.Popen]:
    procs = []
    for i in range(cfg.replicas):
        gpus = ",".join(str(g) for g in range(i * cfg.tp, (i + 1) * cfg.tp))
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": gpus, "VLLM_LOGGING_LEVEL": "WARNING"}
        log = open(Path("logs") / f"replica{i}.log", "w")
        procs.append(subprocess.Popen(shlex.split(command(cfg, i)), env=env, stdout=log, stderr=log))
    return procs


def wait(cfg: Cfg, timeout: int = 1800) -> None:
    end = time.time() + timeout
    for i in range(cfg.replicas):
        while time.time() < end:
            try:
                if requests.get(f"http://127.0.0.1:{cfg.base_port + i}/health", timeout=2).ok:
                    break
            except requests.ConnectionError:
                time.sleep(5)


if __name__ == "__main__":
    cfg = Cfg()
    ps = start(cfg)
    wait(cfg)
    subprocess.run(["nginx", "-c", os.path.abspath("nginx.conf"), "-g", "daemon off;"])
