"""Our own gateway: vLLM in-process, FastAPI in front."""
import os
import uuid

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from vllm import AsyncEngineArgs, AsyncLLMEngine, SamplingParams

MODEL = os.environ.get("MODEL", "Qwen/Qwen3-14B-FP8")
TP = int(os.getenv("TP", "2"))
MAX_LEN = 24 * 1024

app = FastAPI()

engine_args = AsyncEngineArgs(
    model=MODEL,
    tensor_parallel_size=TP,
    max_model_len=MAX_LEN,
    max_num_seqs=48,
    gpu_memory_utilization=0.88,
    enable_prefix_caching=True,
    disable_log_stats=False,
    speculative_config={
        "model": "Qwen/Qwen3-0.6B",
        "num_speculative_tokens": 4,
        "max_model_len": 8192,
    },
)
engine = AsyncLLMEngine.from_engine_args(engine_args)


class Req(BaseModel):
    prompt: str
    max_tokens: int = 2048
    temperature: float = 0.6
    model: str = "qwen3"


@app.post("/generate")
async def generate(r: Req):
    params = SamplingParams(temperature=r.temperature, top_p=0.95, max_tokens=r.max_tokens)
    out = None
    async for o in engine.generate(r.prompt, params, str(uuid.uuid4())):
        out = o
    return {"text": out.outputs[0].text}


if __name__ == "__main__":
    uvicorn.run(app, host="0.0.0.0", port=8080, workers=1)
