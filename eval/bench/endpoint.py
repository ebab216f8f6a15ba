"""Measures speed and acceptance of a running endpoint on held-out traffic.

    measure_endpoint(url="http://localhost:8000", target=target, prompts=prompts,
                     sampling=Sampling(0.6, 0.95), settings=EvalConfig(), log_dir=log_dir,
                     say=print)

Acceptance is that of the speculator that the endpoint runs, taken from the endpoint's counters;
there is no comparison and no verdict. The counters include the requests of all clients, so this
measurement's share of the counted tokens is reported; a share below LEAST_SHARE triggers a warning.
"""

import itertools
import json
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.common.errors import OutriderError
from outrider.eval.bench.closed_loop import record_of
from outrider.eval.bench.metrics import pool_blocks
from outrider.eval.bench.request_fields import RequestFields
from outrider.eval.config import EvalConfig
from outrider.serving.client import Sampling, SpeculationCounters
from outrider.serving.config import TargetConfig
from outrider.serving.load_generator import WARM_UP_TOKENS, BlockResult, LoadGenerator

LEAST_SHARE = 0.98


def measure_endpoint(
    *,
    url: str,
    target: TargetConfig,
    prompts: Sequence[str],
    sampling: Sampling,
    settings: EvalConfig,
    log_dir: Path,
    say: Callable[[str], None],
    fields: RequestFields | None = None,
) -> dict[str, Any]:
    """Measures closed-loop blocks at each `eval.concurrency`, `eval.repeats` times.

    `prompts` are rendered text, sent with their `fields`; a block has `settings.block_requests`
    of them. The result has JSON values: the endpoint's address, the first model that it lists, the
    sampling settings, and `measured`, a `_row` for each concurrency.
    """
    url = url.rstrip("/")
    model = _model_name(url)
    supply = itertools.cycle(prompts)
    blocks: dict[int, list[BlockResult]] = {size: [] for size in settings.concurrency}
    with LoadGenerator(target, Path(log_dir) / "load.log", model, fields) as load:
        widest = max(settings.concurrency)
        first = list(itertools.islice(supply, widest))
        # Not measured: the first requests may wait for compilation and cold caches.
        load.run_block(
            url=url, prompts=first, concurrency=widest, sampling=sampling, max_tokens=WARM_UP_TOKENS
        )
        for repeat in range(settings.repeats):
            for size in settings.concurrency:
                say(f"repeat {repeat + 1}/{settings.repeats}, concurrency {size}")
                chosen = list(itertools.islice(supply, settings.block_requests(size)))
                block = load.run_block(
                    url=url,
                    prompts=chosen,
                    concurrency=size,
                    sampling=sampling,
                    max_tokens=settings.max_tokens,
                )
                blocks[size].append(block)
    measured = {str(size): _row(results, size) for size, results in blocks.items()}
    return {"endpoint": url, "model": model, "sampling": asdict(sampling), "measured": measured}


def _model_name(url: str) -> str:
    """The first model that the server lists."""
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as response:
            return str(json.load(response)["data"][0]["id"])
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise OutriderError(
            f"--server {url}: {url}/v1/models does not name a model ({error}); give the address "
            "of a vLLM server, such as http://127.0.0.1:8000"
        ) from None


def print_endpoint(results: Mapping[str, Any], console: Console) -> None:
    """Prints the table, and a warning if other clients use the endpoint."""
    head = ("concurrency", "tokens/s", "acceptance", "by position", "first token ms", "token ms")
    table = Table(*head, "p99", title=Text(f"{results['model']} at {results['endpoint']}"))
    for concurrency, row in results["measured"].items():
        length = f"{row['acceptance_length']:.3f}" if row["drafts"] else "none"
        positions = " ".join(f"{share:.2f}" for share in row["cumulative"])
        speed = row["tokens_per_s"]
        first = row["ttft_ms"]["p50"]
        later = row["tpot_ms"]
        figures = f"{first:.0f}", f"{later['p50']:.1f}", f"{later['p99']:.1f}"
        table.add_row(concurrency, f"{speed:.0f}", length, positions, *figures)
    console.print(table)
    least = min(row["share"] for row in results["measured"].values())
    if least < LEAST_SHARE:
        console.print(
            f"[yellow]warning[/] only {least:.0%} of the tokens that the endpoint delivered belong "
            "to this measurement: others use it, and the acceptance includes their requests",
            soft_wrap=True,
        )


def _row(blocks: Sequence[BlockResult], concurrency: int) -> dict[str, Any]:
    """Pools blocks and adds the endpoint's counts.

    `acceptance_length` is 1 + accepted / drafts, null without drafts. `cumulative` has, for each
    position j, the share of drafts whose first j tokens were all accepted. `share` is this
    measurement's share of the tokens that the endpoint delivered.
    """
    record = record_of(blocks, concurrency)
    counters = SpeculationCounters(**record["counters"])
    drafts = counters.drafts
    return {
        **pool_blocks([record]).model_dump(mode="json"),
        "drafts": drafts,
        "acceptance_length": counters.acceptance_length if drafts else None,
        "cumulative": [n / drafts for n in counters.accepted_per_position] if drafts else [],
        # The counters are the endpoint's, for all of its clients.
        "share": record["output_tokens"] / max(counters.generation_tokens, 1),
    }
