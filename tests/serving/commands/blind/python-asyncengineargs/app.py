"""FastAPI wrapper around the vLLM engine (prod)."""
import os
import uuid
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.responses import StreamingResponse
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.v1.engine.async_llm import AsyncLLM

os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
os.environ["VLLM_ATTENTION_BACKEND"] = "FLASH_ATTN"

MODEL_PATH = os.getenv("MODEL_PATH", "Qwen/Qwen3-14B-FP8")
SPECULATE = os.getenv("SPECULATE", "1") == "1"
GPUS = int(os.environ.get("TP_SIZE", "2"))

COMMON = dict(
    dtype="auto",
    max_model_len=8 * 4096,
    gpu_memory_utilization=0.9,
    enable_prefix_caching=True,
    max_num_seqs=256,
)
if GPUS > 1:
    COMMON["max_num_seqs"] = 80

spec = None
if SPECULATE:
    spec = {
        "method": "eagle3",
        "model": os.getenv("DRAFT_PATH", "AngelSlim/Qwen3-14B_eagle3"),
        "num_speculative_tokens": 2 + 1,
        "draft_tensor_parallel_size": 1,
    }

engine_args = AsyncEngineArgs(
    model=MODEL_PATH,
    tokenizer=MODEL_PATH,
    tensor_parallel_size=GPUS,
    speculative_config=spec,
    disable_log_stats=False,
    **COMMON,
)


@asynccontextmanager
async def lifespan(app: FastAPI):
    app.state.engine = AsyncLLM.from_engine_args(engine_args)
    yield
    app.state.engine.shutdown()


app = FastAPI(lifespan=lifespan)


@app.post("/generate")
async def generate(body: dict):
    params = SamplingParams(temperature=0.6, top_p=0.95, max_tokens=body.get("max_tokens", 1024))

    async def stream():
        async for out in app.state.engine.generate(body["prompt"], params, str(uuid.uuid4())):
            yield out.outputs[0].text

    return StreamingResponse(stream())
