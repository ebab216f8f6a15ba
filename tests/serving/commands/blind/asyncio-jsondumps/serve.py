"""Start the production engine; called by our gateway."""
import asyncio, json, os, sys

MODEL = "meta-llama/Llama-3.3-70B-Instruct"
DRAFT = "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"
TP = 4
USE_SPEC = True

env = dict(os.environ, VLLM_USE_FLASHINFER_SAMPLER="1", CUDA_VISIBLE_DEVICES="0,1,2,3")

cmd = [
    sys.executable, "-m", "vllm.entrypoints.openai.api_server",
    "--model", MODEL,
    "--tensor-parallel-size", str(TP),
    "--quantization", "fp8",
    "--kv-cache-dtype", "fp8_e4m3",
    "--max-model-len", "32768",
    "--max-num-seqs", "64",
    # "--enforce-eager",
]
if USE_SPEC:
    cmd += ["--speculative-config", json.dumps({
        "method": "eagle3", "model": DRAFT, "num_speculative_tokens": 3,
        "draft_tensor_parallel_size": 1, "disable_padded_drafter_batch": False,
    })]


async def main():
    proc = await asyncio.create_subprocess_exec(*cmd, env=env)
    await proc.wait()


asyncio.run(main())
