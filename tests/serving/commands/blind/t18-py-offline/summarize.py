"""Nightly batch: summarise yesterday's tickets with R1-Distill-Qwen-32B."""
import json
import sys
from pathlib import Path

from transformers import AutoTokenizer
from vllm import LLM, SamplingParams

MODEL = "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B"
MAX_LEN = 16 * 1024
PROMPT = "Summarise the following support ticket in three bullet points.\n\n{ticket}"


def load(path: Path) -> list[dict]:
    with path.open() as fh:
        return [json.loads(line) for line in fh if line.strip()]


def main() -> None:
    src, dst = Path(sys.argv[1]), Path(sys.argv[2])
    tickets = load(src)

    tok = AutoTokenizer.from_pretrained(MODEL)
    llm = LLM(
        model=MODEL,
        tensor_parallel_size=2,
        dtype="bfloat16",
        max_model_len=MAX_LEN,
        max_num_seqs=96,
        gpu_memory_utilization=0.93,
        enable_prefix_caching=True,
        seed=0,
        speculative_config={
            "method": "ngram",
            "num_speculative_tokens": 5,
            "prompt_lookup_max": 4,
            "prompt_lookup_min": 2,
        },
    )
    params = SamplingParams(temperature=0.6, top_p=0.95, max_tokens=2048)

    prompts = [
        tok.apply_chat_template(
            [{"role": "user", "content": PROMPT.format(ticket=t["body"])}],
            tokenize=False,
            add_generation_prompt=True,
        )
        for t in tickets
    ]
    outs = llm.generate(prompts, params)
    with dst.open("w") as fh:
        for t, o in zip(tickets, outs):
            text = o.outputs[0].text.split("</think>")[-1].strip()
            fh.write(json.dumps({"id": t["id"], "summary": text}) + "\n")


if __name__ == "__main__":
    main()
