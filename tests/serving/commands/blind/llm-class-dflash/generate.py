"""Nightly synthetic-data job. Runs under torchrun-less vLLM on one node."""
import argparse
import json
import os

from vllm import LLM, SamplingParams

MODEL = os.environ.get("GEN_MODEL", "Qwen/Qwen3-8B")
DRAFT = "z-lab/Qwen3-8B-DFlash-b16"

COMMON = dict(
    trust_remote_code=True,
    dtype="bfloat16",
    gpu_memory_utilization=0.9,
    max_num_seqs=128,
    enable_prefix_caching=True,
)


def build_engine(args):
    kwargs = {
        **COMMON,
        "model": args.model,
        "tensor_parallel_size": args.tp,
        "max_model_len": args.prompt_len + args.max_tokens,
        "max_num_batched_tokens": 32_768,
        "seed": 1234,
    }
    if not args.no_spec:
        kwargs["speculative_config"] = {
            "method": "dflash",
            "model": DRAFT,
            "num_speculative_tokens": 15,
        }
        kwargs["max_num_seqs"] = 64
    return LLM(**kwargs)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--model", default=MODEL)
    p.add_argument("--tp", type=int, default=2)
    p.add_argument("--prompt-len", type=int, default=8192)
    p.add_argument("--max-tokens", type=int, default=16384)
    p.add_argument("--no-spec", action="store_true")
    p.add_argument("--input", default="prompts.jsonl")
    args = p.parse_args()

    llm = build_engine(args)
    sp = SamplingParams(temperature=0.6, top_p=0.95, top_k=20, max_tokens=args.max_tokens)
    rows = [json.loads(x) for x in open(args.input)]
    for row, out in zip(rows, llm.chat([r["messages"] for r in rows], sp)):
        print(json.dumps({"id": row["id"], "text": out.outputs[0].text}, ensure_ascii=False))


if __name__ == "__main__":
    main()
