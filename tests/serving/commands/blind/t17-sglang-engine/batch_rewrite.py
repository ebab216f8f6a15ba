import asyncio
import json
import os
import sys

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "2,3")
os.environ["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"

import sglang as sgl

TARGET = os.environ.get("TARGET", "meta-llama/Llama-3.1-8B-Instruct")
HEAD = "lmsys/sglang-EAGLE3-LLaMA3.1-Instruct-8B"

spec = {
    "speculative_algorithm": "EAGLE3",
    "speculative_draft_model_path": HEAD,
    "speculative_num_steps": 5,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 6,
}
# tree drafting was slower with more than 8 requests at once
# spec.update(speculative_num_steps=3, speculative_eagle_topk=4, speculative_num_draft_tokens=16)


async def main(path):
    engine = sgl.Engine(
        model_path=TARGET,
        tp_size=2,
        dtype="bfloat16",
        kv_cache_dtype="fp8_e5m2",
        context_length=16384,
        max_running_requests=64,
        mem_fraction_static=0.78,
        attention_backend="fa3",
        cuda_graph_max_bs=64,
        log_level="warning",
        **spec,
    )
    rows = [json.loads(line) for line in open(path)]
    outs = await engine.async_generate(
        [r["prompt"] for r in rows], {"temperature": 0, "max_new_tokens": 256}
    )
    for r, o in zip(rows, outs):
        print(json.dumps({**r, "rewrite": o["text"]}))
    engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
