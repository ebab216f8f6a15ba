"""OpenAI-compatible GLM-4.5-Air on Modal.   modal deploy modal_app.py"""
import json
import subprocess

import modal

MINUTES = 60
VLLM_PORT = 8000
N_GPU = 2
FAST_BOOT = False
MODEL_NAME = "zai-org/GLM-4.5-Air-FP8"
MODEL_REVISION = "main"

SPECULATIVE = {
    "method": "mtp",
    "num_speculative_tokens": 1,
}

image = (
    modal.Image.from_registry("nvidia/cuda:12.9.0-devel-ubuntu22.04", add_python="3.12")
    .entrypoint([])
    .uv_pip_install("vllm==0.14.1", "huggingface-hub==0.36.0")
    .env({"HF_XET_HIGH_PERFORMANCE": "1"})
)

hf_cache = modal.Volume.from_name("huggingface-cache", create_if_missing=True)
vllm_cache = modal.Volume.from_name("vllm-cache", create_if_missing=True)

app = modal.App("glm-air")


@app.function(
    image=image,
    gpu=f"H100:{N_GPU}",
    scaledown_window=15 * MINUTES,
    timeout=20 * MINUTES,
    volumes={"/root/.cache/huggingface": hf_cache, "/root/.cache/vllm": vllm_cache},
    secrets=[modal.Secret.from_name("huggingface")],
)
@modal.concurrent(max_inputs=64)
@modal.web_server(port=VLLM_PORT, startup_timeout=20 * MINUTES)
def serve():
    cmd = [
        "vllm",
        "serve",
        MODEL_NAME,
        "--revision",
        MODEL_REVISION,
        "--served-model-name",
        "glm-4.5-air",
        "llm",
        "--host",
        "0.0.0.0",
        "--port",
        str(VLLM_PORT),
        "--uvicorn-log-level=info",
        "--max-model-len",
        str(64 * 1024),
        "--max-num-seqs",
        "64",
        "--reasoning-parser",
        "glm45",
        "--tool-call-parser",
        "glm45",
        "--enable-auto-tool-choice",
    ]
    cmd += ["--enforce-eager" if FAST_BOOT else "--no-enforce-eager"]
    cmd += ["--tensor-parallel-size", str(N_GPU)]
    cmd += ["--speculative-config", json.dumps(SPECULATIVE)]

    print(*cmd)
    subprocess.Popen(cmd)


@app.local_entrypoint()
def test():
    import urllib.request

    print(urllib.request.urlopen(serve.get_web_url() + "/v1/models").read())
