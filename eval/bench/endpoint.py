"""Measures a running endpoint on held-out traffic: acceptance from its counters, and speed.

    measure_endpoint("http://127.0.0.1:8000", target, prompts, Sampling(0.6, 0.95), EvalConfig(),
                     log_dir, say=print)

Nothing is compared and no verdict is given: it is one endpoint, whichever speculator it runs. Its
counters include the requests of all its clients. So the share of the counted tokens that belong to
this measurement is reported; below LEAST_SHARE the acceptance is also that of other clients.
"""

import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from outrider.common.errors import OutriderError
from outrider.eval.bench.closed_loop import run_block
from outrider.eval.bench.metrics import pooled
from outrider.eval.config import EvalConfig
from outrider.eval.results.parts import Part
from outrider.eval.results.speed import Block
from outrider.serving.client import Sampling
from outrider.serving.config import TargetConfig
from outrider.serving.load_generator import WARM_UP_TOKENS, LoadGenerator

LEAST_SHARE = 0.98

COLUMNS = (
    "concurrency",
    "tokens/s",
    "acceptance",
    "by position",
    "first token ms",
    "token ms",
    "p99",
)


class EndpointRow(Block):
    """One concurrency, its blocks pooled."""

    drafts: int
    """Steps with drafts, by the endpoint's counters"""
    acceptance_length: float | None
    """1 + accepted / drafts; null without drafts"""
    cumulative: list[float]
    """By position j: share of drafts whose first j tokens were all accepted"""
    share: float
    """Tokens of this measurement over all tokens that the endpoint delivered meanwhile"""


class EndpointResults(Part):
    """What an endpoint showed."""

    endpoint: str
    """Its address"""
    model: str
    """The model that it names first"""
    sampling: Sampling
    """The customer's sampling"""
    measured: dict[str, EndpointRow]
    """Concurrency -> speed and acceptance"""


def measure_endpoint(
    url: str,
    target: TargetConfig,
    prompts: Sequence[str],
    sampling: Sampling,
    settings: EvalConfig,
    log_dir: Path,
    say: Callable[[str], None],
) -> EndpointResults:
    """Closed-loop blocks at each of `eval.concurrency`, `eval.repeats` times.

    `prompts` are rendered text, `eval.requests` of them per block.
    """
    url = url.rstrip("/")
    model = _model(url)
    supply = itertools.cycle(prompts)
    blocks: dict[int, list[Mapping[str, Any]]] = {size: [] for size in settings.concurrency}
    with LoadGenerator(target, Path(log_dir) / "load.log", model) as load:
        widest = max(settings.concurrency)
        first = list(itertools.islice(supply, widest))
        run_block(url, load, first, widest, sampling, WARM_UP_TOKENS)
        for repeat in range(settings.repeats):
            for size in settings.concurrency:
                say(f"repeat {repeat + 1}/{settings.repeats}, concurrency {size}")
                chosen = list(itertools.islice(supply, settings.block_requests(size)))
                block = run_block(url, load, chosen, size, sampling, settings.max_tokens)
                blocks[size].append(block)
    measured = {str(size): _row(own) for size, own in blocks.items()}
    return EndpointResults(endpoint=url, model=model, sampling=sampling, measured=measured)


def print_endpoint(results: EndpointResults, console: Console) -> None:
    """Prints the table, and a warning where other clients use the endpoint."""
    table = Table(
        title=f"{results.model} at {results.endpoint}", title_justify="left", box=box.SIMPLE_HEAD
    )
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for concurrency, row in results.measured.items():
        length = row.acceptance_length
        table.add_row(
            concurrency,
            f"{row.tokens_per_s:.0f}",
            "none" if length is None else f"{length:.3f}",
            " ".join(f"{share:.2f}" for share in row.cumulative),
            f"{row.ttft_ms.p50:.0f}",
            f"{row.tpot_ms.p50:.1f}",
            f"{row.tpot_ms.p99:.1f}",
        )
    console.print(table)
    least = min(row.share for row in results.measured.values())
    if least < LEAST_SHARE:
        console.print(
            f"[yellow]warning[/] only {least:.0%} of the tokens that the endpoint delivered belong "
            "to this measurement: others use it, and its acceptance includes theirs",
            soft_wrap=True,
        )


def _row(blocks: Sequence[Mapping[str, Any]]) -> EndpointRow:
    counters = [block["counters"] for block in blocks]
    drafts = sum(each["drafts"] for each in counters)
    accepted = sum(each["accepted_tokens"] for each in counters)
    generated = sum(each["generation_tokens"] for each in counters)
    per_position = [each["accepted_per_position"] for each in counters]
    reached = [sum(counts) for counts in zip(*filter(None, per_position), strict=True)]
    return EndpointRow(
        **dict(pooled(blocks)),
        drafts=drafts,
        acceptance_length=1 + accepted / drafts if drafts else None,
        cumulative=[count / drafts for count in reached] if drafts else [],
        share=sum(block["output_tokens"] for block in blocks) / max(generated, 1),
    )


def _model(url: str) -> str:
    """The first model that the endpoint serves."""
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as response:
            return str(json.load(response)["data"][0]["id"])
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise OutriderError(
            f"--server {url}: {url}/v1/models does not name a model ({error}); give the address "
            "of a vLLM server, such as http://127.0.0.1:8000"
        ) from None
