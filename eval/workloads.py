"""Acceptance by K on the public workloads that model cards report.

    measured_workloads(context, sampling)["gsm8k"].by_k["custom"]       # for K = 1, 2, ...

The target answers each workload's prompts, its states are captured, and both speculators are
replayed exactly. Only the first turn of a conversation is used, as in `vllm bench serve`. Files
have the Hub's layout; SPEED-Bench files are as NVIDIA's prepare.py writes them. SPEED-Bench's
license forbids redistribution, so users must download it themselves.
"""

import functools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from outrider.common.child_process import in_child
from outrider.common.errors import OutriderError
from outrider.data.tokenize.chat_template import render_prompt
from outrider.data.tokenize.tokens import load_tokenizer
from outrider.eval.config import SEED, EvalConfig, PublicWorkload
from outrider.eval.context import EvaluationContext, Row
from outrider.eval.replay.replay import replay
from outrider.eval.replay.sums import compare_replays
from outrider.eval.results.sections import Workload
from outrider.eval.stats.clusters import INDEPENDENT
from outrider.serving.client import Sampling
from outrider.serving.engine import AskedRow, Engine


class Source(NamedTuple):
    """Location of a workload, and how to read its prompts."""

    column: str
    hub: tuple[str, str | None, str] | None
    """Repository, configuration and split; None if users must download it"""
    prompt: Callable[[Any], str] = str
    file: str = ""
    """Name of the file to read if a folder is given"""


SOURCES: dict[PublicWorkload, Source] = {
    "speed_bench": Source("messages", None, lambda turns: turns[0]["content"], "qualitative.jsonl"),
    "mt_bench": Source("turns", ("philschmid/mt-bench", None, "train"), lambda turns: turns[0]),
    "gsm8k": Source("question", ("openai/gsm8k", "main", "test")),
    "humaneval": Source("prompt", ("openai/openai_humaneval", None, "test")),
}


def prompts_of(settings: EvalConfig, name: PublicWorkload) -> list[str]:
    """Draws at most `general_prompts` of the workload's prompts, with a fixed seed.

    Raises:
        OutriderError: If the workload cannot be loaded or has an unexpected layout.
    """
    from datasets import load_dataset

    source = SOURCES[name]
    location = settings.general[name]
    key = f"eval.general.{name} = {location or 'null'}"
    try:
        if location is not None:
            path = Path(location).expanduser()
            path = path / source.file if path.is_dir() else path
            kind = "parquet" if path.suffix == ".parquet" else "json"
            table = load_dataset(kind, data_files=str(path), split="train")
        elif source.hub is None:
            raise OutriderError(
                f"{key}: SPEED-Bench must be downloaded by its users; give the folder that"
                " NVIDIA's prepare.py wrote"
            )
        else:
            repository, configuration, split = source.hub
            table = load_dataset(repository, configuration, split=split)
    except (OSError, ValueError, RuntimeError) as error:  # datasets' errors derive from these
        raise OutriderError(
            f"{key}: cannot be loaded ({str(error).splitlines()[0]}); give a local file in the"
            " hub's layout"
        ) from None
    if source.column not in table.column_names:
        columns = ", ".join(table.column_names)
        raise OutriderError(f"{key}: has no column {source.column!r}; its columns are {columns}")
    order = random.Random(SEED).sample(range(len(table)), min(settings.general_prompts, len(table)))
    return [source.prompt(table[row][source.column]) for row in order]


def measured_workloads(context: EvaluationContext, sampling: Sampling) -> dict[str, Workload]:
    """Measures `eval.general`'s workloads with the customer's sampling settings; caches results."""
    if context.no_replay:
        return {}
    return {
        name: context.cached_measurement(
            f"workload_{name}", Workload, functools.partial(_measure, context, name, sampling)
        )
        for name in context.settings.general
    }


def _measure(context: EvaluationContext, name: PublicWorkload, sampling: Sampling) -> Workload:
    asked = [*_asked(context, prompts_of(context.settings, name), sampling)]
    context.say(f"{name}: the target answers {len(asked)} prompts")

    def rows(engine: Engine) -> list[Row]:
        return [
            (row.row_id, [*row.token_ids, *answer], len(row.token_ids))
            for row, answer in zip(asked, engine.answer(asked), strict=True)
        ]

    # Each prompt counts as a session: a public workload has no users.
    rows_replayed = [
        {"sequence_id": row.row_id, "session": row.row_id, "user": INDEPENDENT} for row in asked
    ]
    target_dir = context.target.directory()
    depth = context.depth
    method = context.draft_sample_method
    dtype = context.settings.replay_dtype
    with context.capture_states(rows) as store:
        sums = {
            name: in_child(
                replay,
                speculator=speculator.replay_argument(context.runner(speculator)),
                target_dir=target_dir,
                feature_store=store,
                rows=rows_replayed,
                depth=depth,
                draft_sample_method=method,
                sampling=sampling,
                dtype=dtype,
            )
            for name, speculator in context.speculators.items()
        }
    return Workload(
        by_k={name: replayed.acceptance_length() for name, replayed in sums.items()},
        ratio=compare_replays(sums["base"], sums["custom"], depth)["ratio"],
    )


def _asked(
    context: EvaluationContext, prompts: list[str], sampling: Sampling
) -> Iterator[AskedRow]:
    """Yields engine requests for the prompts that leave room for a response."""
    tokenizer = load_tokenizer(context.target.directory())
    longest = context.settings.max_tokens
    room = context.serving.engine.max_model_len - longest - 1
    for number, prompt in enumerate(prompts):
        text = render_prompt(tokenizer, [{"role": "user", "content": prompt}], {})
        ids = tokenizer.encode(text, add_special_tokens=False)
        if len(ids) <= room:
            yield AskedRow(
                row_id=str(number),
                token_ids=ids,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                max_tokens=longest,
                top_k=sampling.top_k,
            )
