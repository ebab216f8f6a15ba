"""Inputs of the checks: the embedded target, its logged traffic, a weakened speculator.

rows = logged_rows(16)            # (id, token ids, completion start), as the engine saw them
"""

import gzip
import itertools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.pipeline.recipe.shipped import EMBEDDED_TRAFFIC
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.speculators.config import ParityConfig
from outrider.speculators.kinds import trainable_kind_of
from outrider.speculators.kinds.protocol import Origin

if TYPE_CHECKING:
    from outrider.speculators.kinds.drafter import Drafter

TARGET = TargetConfig(model="nano_r1")
K = 4
PARITY = ParityConfig(prompts=4, max_tokens=48, anchors=96)

Row = tuple[str, list[int], int]


def engine_config(on_gpu: bool) -> EngineConfig:
    """An engine as production runs it, or a small eager one."""
    if on_gpu:
        return EngineConfig(mode="compiled", max_num_seqs=32, max_num_batched_tokens=8192)
    return EngineConfig(max_num_seqs=4, max_model_len=1024, kv_cache_gb=0.25)


def logged_rows(count: int) -> list[Row]:
    """Logged exchanges with the ids that the engine read and sampled, which some rows have."""
    with gzip.open(EMBEDDED_TRAFFIC / "resume_screening.jsonl.gz", "rt", encoding="utf-8") as log:
        return list(itertools.islice(_rows_with_ids(log), count))


def _rows_with_ids(lines: Iterable[str]) -> Iterator[Row]:
    for line in lines:
        response = json.loads(line)["response"]
        prompt, answer = response["prompt_token_ids"], response["choices"][0]["token_ids"]
        if prompt and answer:
            yield response["id"], [*prompt, *answer], len(prompt)


def logged_prompts(count: int) -> list[list[int]]:
    """The prompts of logged exchanges."""
    return [token_ids[:start] for _, token_ids, start in logged_rows(count)]


def weakened_speculator(directory: Path) -> Path:
    """The target's own speculator with noise in its matrices, so that it accepts less."""
    import torch

    target = TARGET.directory()
    drafter = trainable_kind_of(target).load(target, target, torch.float32)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.dim() > 1:
                noise = torch.empty_like(parameter).normal_(generator=generator)
                parameter.add_(noise * parameter.std())
    publish_drafter(drafter, target, directory)
    return directory


def publish_drafter(drafter: "Drafter", target: Path, directory: Path) -> None:
    """Writes a speculator's directory, as training does."""
    kind = trainable_kind_of(target)
    kind.write(kind.trained(drafter, drafter.state_dict()), Origin(target, target), directory)
