"""Offline check of EAGLE-3 on Llama 3.3 70B (4x H100).

    python bench_eagle3.py                      # defaults, what we report
    python bench_eagle3.py --num-spec 5 --tp 8  # other box
"""
import argparse
import json
import os
import time

os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from transformers import AutoTokenizer
from vllm import LLM, SamplingParams

TARGET = "meta-llama/Llama-3.3-70B-Instruct"
DRAFT = "yuhuili/EAGLE3-LLaMA3.3-Instruct-70B"
OLD_DRAFT = "yuhuili/EAGLE-LLaMA3-Instruct-70B"  # EAGLE-1, for the appendix only


def load_prompts(path, n):
    prompts = []
    with open(path) as f:
        for line in f:
            prompts.append(json.loads(line)["turns"][0])
    return prompts[:n]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tp", type=int, default=4)
    ap.add_argument("--num-spec", type=int, default=3)
    ap.add_argument("--max-model-len", type=int, default=8192)
    ap.add_argument("--eager", action="store_true")
    ap.add_argument("--data", default="mt_bench/question.jsonl")
    ap.add_argument("--n", type=int, default=80)
    args = ap.parse_args()

    tok = AutoTokenizer.from_pretrained(TARGET)
    texts = [
        tok.apply_chat_template([{"role": "user", "content": p}], tokenize=False, add_generation_prompt=True)
        for p in load_prompts(args.data, args.n)
    ]

    llm = LLM(
        model=TARGET,
        tensor_parallel_size=args.tp,
        max_model_len=args.max_model_len,
        max_num_seqs=32,
        gpu_memory_utilization=0.9,
        enforce_eager=args.eager,
        seed=0,
        disable_log_stats=False,
        speculative_config={
            "method": "eagle3",
            "model": DRAFT,
            "num_speculative_tokens": args.num_spec,
            "draft_tensor_parallel_size": 1,
        },
    )
    sp = SamplingParams(temperature=0.0, max_tokens=512)
    t0 = time.perf_counter()
    outs = llm.generate(texts, sp)
    dt = time.perf_counter() - t0
    ntok = sum(len(o.outputs[0].token_ids) for o in outs)
    print(f"{ntok} tokens in {dt:.1f}s = {ntok/dt:.1f} tok/s")
    for m in llm.get_metrics():
        if m.name.startswith("vllm:spec_decode"):
            print(m)


if __name__ == "__main__":
    main()
