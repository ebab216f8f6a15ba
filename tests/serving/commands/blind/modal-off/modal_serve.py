import json
import modal

vllm_image = (
    modal.Image.from_registry("nvidia/cuda:12.8.0-devel-ubuntu22.04", add_python="3.12")
    .entrypoint([])
    .uv_pip_install("vllm==0.13.0", "huggingface-hub==0.36.0")
    .env({"HF_XET_HIGH_PERFORMANCE": "1"})
)

MODEL_NAME = "Qwen/Qwen3-4B-Thinking-2507-FP8"
MODEL_REVISION = "953532f942706930ec4bb870569932ef63038fdf"
DRAFT = "AngelSlim/Qwen3-4B_eagle3"
USE_SPEC = False   # acceptance was 1.4, switched off 2026-01-12
FAST_BOOT = False

app = modal.App("qwen-thinking")
N_GPU = 1
MINUTES = 60
VLLM_PORT = 8000


@app.function(image=vllm_image, gpu=f"H100:{N_GPU}", scaledown_window=15 * MINUTES, timeout=10 * MINUTES)
@modal.concurrent(max_inputs=32)
@modal.web_server(port=VLLM_PORT, startup_timeout=10 * MINUTES)
def serve():
    import subprocess

    cmd = [
        "vllm", "serve", "--uvicorn-log-level=info",
        MODEL_NAME,
        "--revision", MODEL_REVISION,
        "--served-model-name", MODEL_NAME, "llm",
        "--host", "0.0.0.0",
        "--port", str(VLLM_PORT),
        "--max-model-len", "32768",
        # "--max-num-seqs", "1",
    ]
    cmd += ["--enforce-eager" if FAST_BOOT else "--no-enforce-eager"]
    cmd += ["--tensor-parallel-size", str(N_GPU)]
    if USE_SPEC:
        cmd += ["--speculative-config", json.dumps({"method": "eagle3", "model": DRAFT, "num_speculative_tokens": 5})]
    print(*cmd)
    subprocess.Popen(cmd)
