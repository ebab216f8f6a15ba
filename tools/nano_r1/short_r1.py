"""Distills nano R1's 16 layers into 4 on its logged responses.

    python -m tools.nano_r1.short_r1 [--epochs 4] [--tokens 1000000]

Every fifth layer initializes the student. Embedding, final norm and head stay nano R1's, so that
its MTP layer can read the states. The loss is the squared distance of the states from nano R1's,
divided by their variance, plus the KL divergence from nano R1's next-token distribution.
"""

import argparse
import copy
import random
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from outrider.pipeline.recipe.shipped import EMBEDDED_TRAFFIC
from tests.shipped_traffic import token_ids, with_token_ids
from tests.short_r1 import LAYERS, STORED
from tools.nano_r1.model import NanoR1, layer_tensors, stored

NANO_R1 = Path(__file__).parents[2] / "recipes" / "nano_r1"
BATCH_TOKENS = 4096
LONGEST = 1024


def logged_sequences(tokens: int) -> list[list[int]]:
    """Prompts with responses from the shipped traffic, about equally from each log."""
    logs = sorted(path.name.removesuffix(".jsonl.gz") for path in EMBEDDED_TRAFFIC.iterdir())
    chosen = []
    for log in logs:
        left = tokens // len(logs)
        for prompt, completion in map(token_ids, with_token_ids(log)):
            if left > 0:
                chosen.append((prompt + completion)[:LONGEST])
                left -= len(chosen[-1])
    return chosen


def load_nano_r1() -> NanoR1:
    """Nano R1 in float32, with its checkpoint's weights."""
    model = NanoR1()
    checkpoint = load_file(NANO_R1 / "target" / "model.safetensors")
    parameters = {
        "model.embed_tokens.weight": model.embed_tokens.weight,
        "model.norm.weight": model.norm.weight,
        "lm_head.weight": model.lm_head.weight,
    } | layer_tensors(model.layers)
    with torch.no_grad():
        for name, tensor in parameters.items():
            tensor.copy_(checkpoint[name])
    return model.requires_grad_(False)


def batches(sequences: list[list[int]], seed: int) -> Iterator[list[list[int]]]:
    """All sequences in random order, in batches of about `BATCH_TOKENS`."""
    order = random.Random(seed).sample(sequences, len(sequences))
    batch: list[list[int]] = []
    for sequence in order:
        batch.append(sequence)
        if sum(map(len, batch)) >= BATCH_TOKENS:
            yield batch
            batch = []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    args = parser.parse_args()
    torch.manual_seed(0)
    sequences = logged_sequences(args.tokens)
    teacher = load_nano_r1()
    student = copy.deepcopy(teacher)
    chosen = [round(i * (len(teacher.layers) - 1) / (LAYERS - 1)) for i in range(LAYERS)]
    student.layers = nn.ModuleList(copy.deepcopy(teacher.layers[i]) for i in chosen)
    student.layers.requires_grad_(True)
    optimizer = torch.optim.AdamW(
        student.layers.parameters(), lr=args.learning_rate, betas=(0.9, 0.95), weight_decay=0.01
    )
    states: dict[tuple[int, ...], Tensor] = {}
    """The teacher's states of each sequence, in bfloat16."""
    steps = args.epochs * (sum(map(len, sequences)) // BATCH_TOKENS)
    step = 0
    began = time.monotonic()
    for epoch in range(args.epochs):
        for batch in batches(sequences, epoch):
            lengths = [len(ids) for ids in batch]
            ids_N = torch.tensor([token for ids in batch for token in ids])
            new = [ids for ids in batch if tuple(ids) not in states]
            if new:
                with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                    hidden_NH = teacher(
                        torch.tensor([token for ids in new for token in ids]), list(map(len, new))
                    ).bfloat16()
                parts = hidden_NH.split([len(ids) for ids in new])
                states |= {tuple(ids): part for ids, part in zip(new, parts, strict=True)}
            wanted_NH = torch.cat([states[tuple(ids)] for ids in batch]).float()
            with torch.autocast("cpu", torch.bfloat16):
                hidden_NH = student(ids_N, lengths)
            distance = (hidden_NH - wanted_NH).square().mean() / wanted_NH.var()
            with torch.autocast("cpu", torch.bfloat16):
                wanted_NV = teacher.lm_head(wanted_NH)
                found_NV = student.lm_head(hidden_NH)
            divergence = F.kl_div(
                found_NV.float().log_softmax(-1),
                wanted_NV.float().log_softmax(-1),
                log_target=True,
                reduction="batchmean",
            )
            (distance + divergence).backward()
            nn.utils.clip_grad_norm_(student.layers.parameters(), 1.0)
            for group in optimizer.param_groups:
                group["lr"] = args.learning_rate * min(
                    1.0, (step + 1) / 50, max(steps - step, 1) / (0.5 * steps)
                )
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 20 == 0:
                rate = step * BATCH_TOKENS / (time.monotonic() - began)
                print(
                    f"step {step}/{steps}  distance {distance.item():.3f}"
                    f"  divergence {divergence.item():.3f}  {rate:.0f} tokens/s",
                    flush=True,
                )
                save(student)
    save(student)


def save(student: NanoR1) -> None:
    """Stores the layers in the checkpoint's format."""
    save_file(stored(layer_tensors(student.layers)), STORED)


if __name__ == "__main__":
    main()
