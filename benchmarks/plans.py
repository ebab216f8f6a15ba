"""Dry runs' hours for R1 and its distilled models, by card and effort.

    python -m benchmarks.plans                          # --gpu CARD, in the table's order
    PYTHONPATH=OLDER:. python -P -m benchmarks.plans --flag gpu-memory

Each row is `outrider train RECIPE --dry-run --json` on a run whose ingest counted `--responses`
responses of `--tokens` tokens with their prompts. Timed responses have `--max-tokens` tokens, in
R1's recipes and in those of the distilled models. Revisions before `--gpu` take the card's memory
only. `OLDER` is a folder whose `outrider/` has the `__init__.py` and links to the folders of such a
revision: its `outrider/cli` is its `cli`.
"""

import argparse
import contextlib
import io
import json
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from outrider.cli.main import main as outrider
from tests.distill_configs import DISTILLS

EFFORTS = ("trial", "standard", "thorough")

R1_GPUS = 8

GPUS = (
    ("8B", "Llama-8B", 1, "L4", 24.15),
    ("8B", "Llama-8B", 1, "A10", 24.15),
    ("8B", "Llama-8B", 1, "RTX 4090", 25.76),
    ("8B", "Llama-8B", 1, "L40S", 48.31),
    ("8B", "Llama-8B", 1, "H100", 85.52),
    ("14B", "Qwen-14B", 1, "H100", 85.52),
    ("32B", "Qwen-32B", 2, "H100", 85.52),
    ("70B", "Llama-70B", 4, "H100", 85.52),
)
"""Target, its shape, number of cards, card, and the card's memory in GB."""

H200_GB = 150.75

Words = list[str]


class Log:
    """A log as an ingest has counted it."""

    def __init__(self, responses: int, tokens: int, max_tokens: int) -> None:
        self.ingested = {
            "exchanges": responses,
            "prompt_tokens": responses * (tokens - max_tokens),
            "completion_tokens": responses * max_tokens,
            "lengths": {"completion": {"p90": max_tokens}},
        }
        self.max_tokens = max_tokens


def dry_run(recipe: str, log: Log, words: Words) -> dict[str, Any]:
    """The price that a dry run prints as JSON."""
    with tempfile.TemporaryDirectory() as runs:
        record = Path(runs, "plan", "stages", "ingest.json")
        record.parent.mkdir(parents=True)
        record.write_text(json.dumps({"result": log.ingested}))
        argv = ["outrider", "train", recipe, "name=plan", "traffic.path=nano_r1/social_chat"]
        argv += [f"eval.max_tokens={log.max_tokens}", "--dry-run", "--json", "--runs", runs]
        printed = io.StringIO()
        with (
            mock.patch.object(sys, "argv", argv + words),
            contextlib.redirect_stdout(printed),
            contextlib.suppress(SystemExit),
        ):
            outrider()
    price: dict[str, Any] = json.loads(printed.getvalue().splitlines()[-1])["price"]
    return price


def hours(price: dict[str, Any]) -> float:
    """Hours of all stages."""
    return sum(sum(parts.values()) for parts in price["stages"].values()) / 3600


def card_words(flag: str, card: str, gigabytes: float) -> Words:
    """The option that names the card, or only its memory."""
    return ["--gpu", card] if flag == "gpu" else ["--gpu-memory", str(gigabytes)]


def r1_rows(log: Log, flag: str) -> Iterator[Sequence[str]]:
    """Minutes of each stage of R1's plans, with the evaluation's parts and their numbers."""
    words = ["target.model=recipes/r1", *card_words(flag, "H200", H200_GB)]
    prices = {
        f"`{effort}`": dry_run("r1/template", log, [*words, f"effort={effort}"])
        for effort in EFFORTS
    }
    prices["`r1/resume_screening`"] = dry_run("r1/resume_screening", log, words)
    stages = [price["stages"] for price in prices.values()]
    yield ("stage", *prices)
    yield ["---"] * (1 + len(prices))
    for stage in ("ingest", "split", "capture", "train", "evaluate", "export"):
        yield (stage, *(f"{sum(parts[stage].values()) / 60:.0f} min" for parts in stages))
        if stage == "evaluate":
            yield from _parts([parts[stage] for parts in stages])
    totals = [hours(price) for price in prices.values()]
    yield ("total", *(f"{total:.1f} h, {R1_GPUS * total:.0f} GPU-hours" for total in totals))


def _parts(evaluations: Sequence[dict[str, float]]) -> Iterator[Sequence[str]]:
    """A row for each part of an evaluation, whose names differ by their numbers."""
    rows: dict[str, list[str]] = {}
    for column, parts in enumerate(evaluations):
        for part, seconds in parts.items():
            name, number = _without_number(part)
            cells = rows.setdefault(name, [""] * len(evaluations))
            cells[column] = f"{number}{seconds / 60:.0f} min"
    for name, cells in rows.items():
        yield (f"of these: {name}", *cells)


def _without_number(part: str) -> tuple[str, str]:
    """`24 timed blocks` as its name and its number, `24, `."""
    number = re.search(r"\d+", part)
    if number is None:
        return part, ""
    name = re.sub(r"^\d+ | of \d+ prompts$", "", part)
    return name, f"{number[0]}, "


def distilled_rows(log: Log, flag: str, folder: Path) -> Iterator[Sequence[str]]:
    """Hours of the distilled models' plans by card and effort, and the KV cache."""
    yield ("target", "GPUs", *(f"`{effort}`" for effort in EFFORTS), "KV cache", "training fits")
    yield ["---"] * 7
    for target, shape, number, card, gigabytes in GPUS:
        directory = folder / shape
        directory.mkdir(exist_ok=True)
        (directory / "config.json").write_text(json.dumps(DISTILLS[shape][0]))
        words = [
            f"target.model={directory}",
            f"serving.engine.tensor_parallel={number}",
            *card_words(flag, card, gigabytes),
        ]
        prices = [
            dry_run("r1_distill/template", log, [*words, f"effort={effort}"]) for effort in EFFORTS
        ]
        cache = prices[0]["target"].get("kv_cache_tokens")
        yield (
            target,
            f"{number} x {card}",
            *(f"{hours(price):.1f} h" for price in prices),
            "not given" if cache is None else f"{cache:,} tokens",
            "yes" if prices[0]["memory"][-1]["fits"] else "no",
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--responses", type=int, default=5000)
    parser.add_argument("--tokens", type=int, default=4096, help="of a response and its prompt")
    parser.add_argument("--max-tokens", type=int, default=2048, help="of a timed response")
    parser.add_argument("--flag", choices=("gpu", "gpu-memory"), default="gpu")
    arguments = parser.parse_args()
    log = Log(arguments.responses, arguments.tokens, arguments.max_tokens)
    with tempfile.TemporaryDirectory() as folder:
        for row in r1_rows(log, arguments.flag):
            print(f"| {' | '.join(row)} |")
        print()
        for row in distilled_rows(log, arguments.flag, Path(folder)):
            print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
