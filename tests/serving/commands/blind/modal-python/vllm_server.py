import json
from typing import Any

import modal

vllm_image = (
    modal.Image.from_registry("nvidia/cuda:12.8.0-devel-ubuntu22.04", add_python="3.12")
    .entrypoint([])
    .uv_pip_install(
        "vllm==0.20.2",
        "huggingface-hub==0.36.0",
    )
    .env({"HF_XET_HIGH_PERFORMANCE": "1", "VLLM_USE_DEEP_GEMM": "0"})
)

MODEL_NAME = "Qwen/Qwen3-30B-A3B-Instruct-2507-FP8"
MODEL_REVISION = "main"
DRAFT = "AngelSlim/Qwen3-a3B_eagle3"

hf_cache_vol = modal.Volume.from_name("huggingface-cache", create_if_missing=True)
app = modal.App("vLLM")

N_GPU = 2
MINUTES = 60  # seconds
VLLM_PORT = 8000
FAST_BOOT = False

SPEC: dict[str, Any] = {
    "method": "eagle3",
    "model": DRAFT,
    "num_speculative_tokens": 2,
}


@app.function(
    image=vllm_image,
    gpu=f"H100:{N_GPU}",
    scaledown_window=15 * MINUTES,
    timeout=10 * MINUTES,
    volumes={"/root/.cache/huggingface": hf_cache_vol},
)
@modal.concurrent(max_inputs=32)
@modal.web_server(port=VLLM_PORT, startup_timeout=10 * MINUTES)
def serve():
    import subprocess

    cmd = [
        "vllm",
        "serve",
        "--uvicorn-log-level=info",
        MODEL_NAME,
        "--revision",
        MODEL_REVISION,
        "--served-model-name",
        MODEL_NAME,
        "llm",
        "--host",
        "0.0.0.0",
        "--port",
        str(VLLM_PORT),
    ]

    # enforce-eager disables both Torch compilation and CUDA graph capture
    cmd += ["--enforce-eager" if FAST_BOOT else "--no-enforce-eager"]
    cmd += ["--tensor-parallel-size", str(N_GPU)]
    cmd += ["--max-model-len", f"{32 * 1024}", "--gpu-memory-utilization", "0.92"]
    cmd += ["--speculative-config", json.dumps(SPEC)]

    print(*cmd)
    subprocess.Popen(cmd)
