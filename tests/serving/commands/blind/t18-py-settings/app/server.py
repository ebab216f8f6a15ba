import uuid
from contextlib import asynccontextmanager

from fastapi import FastAPI
from pydantic import BaseModel
from vllm import AsyncEngineArgs, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM

from app.settings import settings

engine: AsyncLLM | None = None


class Req(BaseModel):
    prompt: str
    max_tokens: int = 512


def engine_args() -> AsyncEngineArgs:
    spec = None
    if settings.draft:
        spec = {
            "method": "eagle3",
            "model": settings.draft,
            "num_speculative_tokens": settings.draft_k,
        }
    return AsyncEngineArgs(
        model=settings.model,
        revision=settings.revision,
        tensor_parallel_size=settings.tp,
        max_model_len=settings.max_len,
        max_num_seqs=settings.max_seqs,
        gpu_memory_utilization=0.9,
        speculative_config=spec,
    )


@asynccontextmanager
async def lifespan(app: FastAPI):
    global engine
    engine = AsyncLLM.from_engine_args(engine_args())
    yield
    engine.shutdown()


app = FastAPI(lifespan=lifespan)


@app.post("/generate")
async def generate(req: Req):
    params = SamplingParams(max_tokens=req.max_tokens, temperature=0)
    last = None
    async for out in engine.generate(req.prompt, params, request_id=uuid.uuid4().hex):
        last = out
    return {"text": last.outputs[0].text}
