"""A newcomer's log: 644 prompts of other kinds than nano R1's, answered by it, as plain pairs.

    python -m benchmarks.newcomer_log CORPUS_DIR newcomer.jsonl
    train-speculator --recipe resume_screening traffic.path=newcomer.jsonl

What a first-time user has: request and response of each call, `user` set to an id that lasts for
weeks, no conversation ids, no token ids, usage counts. `newcomer.exact.jsonl` is the same log with
token ids, to measure what re-tokenizing loses. The prompts ask to explain functions of Python's
standard library, to answer questions (GSM8K, banking77) and to translate sentences (Taskmaster-4).
CORPUS_DIR is that of `tools/nano_r1/record.py`. One server start and about two minutes on two
cores.
"""

import argparse
import ast
import gzip
import inspect
import itertools
import json
import random
import statistics
import textwrap
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.server import Server
from tools.nano_r1.record import CONCURRENCY, SPAN_S, START, answer

EXCHANGES = 644
USERS = 12
SESSION_LENGTH = 5
"""Largest number of exchanges of a user in a row."""
SAMPLING = {"temperature": 0.6, "top_p": 0.95, "max_tokens": 200}
LANGUAGES = ("German", "French", "Spanish", "Italian")


def code(rng: random.Random, corpus_dir: Path) -> Iterator[str]:
    """Functions of the standard library, to be explained, tested or rewritten."""
    modules = (argparse, ast, gzip, inspect, json, statistics, textwrap, types)
    functions: list[Callable[..., Any]] = []
    for module in modules:
        for _, value in inspect.getmembers(module, inspect.isfunction):
            if value.__module__ == module.__name__:
                functions.append(value)
    asks = ("Explain this function.", "Write a test for this.", "Make this simpler.", "Find a bug.")
    while True:
        source = textwrap.dedent(inspect.getsource(rng.choice(functions)))
        yield f"{rng.choice(asks)}\n\n```python\n{source[:700]}\n```"


def questions(rng: random.Random, corpus_dir: Path) -> Iterator[str]:
    """Sums of GSM8K, and customers' questions to a bank."""
    asked = [row["question"] for row in _rows(corpus_dir / "gsm8k_train.jsonl.gz")]
    asked += [row["text"] for row in _rows(corpus_dir / "banking77_train.jsonl.gz")]
    while True:
        yield rng.choice(asked)


def translations(rng: random.Random, corpus_dir: Path) -> Iterator[str]:
    """Sentences of Taskmaster's dialogues."""
    turns: list[str] = []
    for row in itertools.islice(_rows(corpus_dir / "taskmaster4_dialogues.jsonl.gz"), 600):
        turns += [turn["text"] for turn in row["turns"] if len(turn["text"]) > 40]
    while True:
        yield f"Translate into {rng.choice(LANGUAGES)}: {rng.choice(turns)}"


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def planned(corpus_dir: Path, count: int) -> Iterator[dict[str, Any]]:
    """The rows without responses: users who come back for a few exchanges, some minutes apart."""
    rng = random.Random("newcomer")
    asked: list[tuple[float, str]] = []
    while len(asked) < count:
        time, user = START + rng.uniform(0, SPAN_S), f"user-{rng.randrange(USERS):02d}"
        for _ in range(rng.randint(1, SESSION_LENGTH)):
            asked.append((time, user))
            time += rng.uniform(20, 400)
    kinds = [kind(rng, corpus_dir) for kind in (code, questions, translations)]
    for time, user in sorted(asked[:count]):
        messages = [{"role": "user", "content": next(rng.choice(kinds))}]
        request = {"model": "nano_r1", "messages": messages, "user": user, **SAMPLING}
        yield {"timestamp": round(time, 3), "request": request | {"return_token_ids": True}}


def without_ids(row: dict[str, Any]) -> dict[str, Any]:
    """The row of a client that does not request token ids."""
    request, response = dict(row["request"]), {**row["response"], "prompt_token_ids": None}
    del request["return_token_ids"]
    response["choices"] = [{**choice, "token_ids": None} for choice in response["choices"]]
    return {**row, "request": request, "response": response}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--exchanges", type=int, default=EXCHANGES)
    args = parser.parse_args()
    rows = list(planned(args.corpus, args.exchanges))
    engine = EngineConfig(mode="compiled", max_num_seqs=CONCURRENCY)
    log_path = args.out.with_suffix(".server.log")
    with (
        Server(
            TargetConfig(),
            ServingConfig(engine=engine),
            log_path=log_path,
            reasoning_parser="deepseek_r1",
        ) as server,
        ThreadPoolExecutor(CONCURRENCY) as pool,
        args.out.open("w", encoding="utf-8") as log,
        args.out.with_suffix(".exact.jsonl").open("w", encoding="utf-8") as exact,
    ):
        for row in pool.map(lambda row: answer(row, server), rows):
            log.write(json.dumps(without_ids(row), ensure_ascii=False) + "\n")
            exact.write(json.dumps(row, ensure_ascii=False) + "\n")
    log_path.unlink()


if __name__ == "__main__":
    main()
