"""Start the SGLang server for DeepSeek-R1-Distill-Llama-70B and wait until it is healthy."""
import subprocess
import sys
import time

import requests

MODEL = "deepseek-ai/DeepSeek-R1-Distill-Llama-70B"
PORT = 30000

cmd = [
    sys.executable, "-m", "sglang.launch_server",
    "--model-path", MODEL,
    "--host", "0.0.0.0",
    "--port", str(PORT),
    "--tp", "4",
    "--context-length", "32768",
    "--max-running-requests", "64",
    "--mem-fraction-static", "0.85",
    "--reasoning-parser", "deepseek-r1",
]


def wait_ready(timeout=1200):
    start = time.time()
    while time.time() - start < timeout:
        try:
            if requests.get(f"http://localhost:{PORT}/health", timeout=2).ok:
                return
        except requests.RequestException:
            pass
        time.sleep(5)
    raise RuntimeError("server did not start")


if __name__ == "__main__":
    proc = subprocess.Popen(cmd)
    wait_ready()
    print("ready")
    proc.wait()
