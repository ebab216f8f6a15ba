"""An endpoint that is already running, as it is: acceptance from its own counters and speed, on held-out traffic.

    measure_endpoint("http://127.0.0.1:8000", target, prompts, Sampling(0.6, 0.95), EvalConfig(), log_dir, say=print)

Nothing is compared and nothing judged: one endpoint, whatever speculates in it. Its counters are of everybody who asks it, so the share
of the counted tokens that this measurement asked for is told; below LEAST_SHARE the acceptance is other people's too.
"""

import itertools
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from outrider.common.errors import OutriderError
from outrider.eval.bench.closed_loop import run_block
from outrider.eval.bench.metrics import pooled
from outrider.eval.config import EvalConfig
from outrider.serving.client import Sampling
from outrider.serving.config import TargetConfig
from outrider.serving.load_generator import WARM_UP_TOKENS, LoadGenerator

LEAST_SHARE = 0.98


def measure_endpoint(
    url: str,
    target: TargetConfig,
    prompts: Sequence[str],
    sampling: Sampling,
    evaluation: EvalConfig,
    log_dir: Path,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Closed-loop blocks of `eval.requests` prompts (rendered text) at each of `eval.concurrency`, `eval.repeats` times.

    By concurrency: tokens/s and latencies, `drafts`, `acceptance_length` (None where nothing was drafted), `cumulative` acceptance by
    position, and `share`, the part of the tokens that the endpoint delivered meanwhile which was asked for here.
    """
    url = url.rstrip("/")
    model = _model(url)
    supply, blocks = (
        itertools.cycle(prompts),
        {concurrency: [] for concurrency in evaluation.concurrency},
    )
    with LoadGenerator(target, Path(log_dir) / "load.log", model) as load:
        widest = max(evaluation.concurrency)
        run_block(
            url, load, list(itertools.islice(supply, widest)), widest, sampling, WARM_UP_TOKENS
        )
        for repeat in range(evaluation.repeats):
            for concurrency in evaluation.concurrency:
                say(f"repeat {repeat + 1}/{evaluation.repeats}, concurrency {concurrency}")
                chosen = list(itertools.islice(supply, evaluation.block_requests(concurrency)))
                blocks[concurrency].append(
                    run_block(url, load, chosen, concurrency, sampling, evaluation.max_tokens)
                )
    measured = {str(concurrency): _row(its_blocks) for concurrency, its_blocks in blocks.items()}
    return {"endpoint": url, "model": model, "sampling": vars(sampling), "measured": measured}


def print_endpoint(results: dict[str, Any], console: Console) -> None:
    """The table for a person, and what to mind."""
    table = Table(
        title=f"{results['model']} at {results['endpoint']}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
    )
    for column in (
        "concurrency",
        "tokens/s",
        "acceptance",
        "by position",
        "first token ms",
        "token ms",
        "p99",
    ):
        table.add_column(column, justify="right")
    for concurrency, row in results["measured"].items():
        length = row["acceptance_length"]
        table.add_row(
            concurrency,
            f"{row['tokens_per_s']:.0f}",
            "none" if length is None else f"{length:.3f}",
            " ".join(f"{share:.2f}" for share in row["cumulative"]),
            f"{row['ttft_ms']['p50']:.0f}",
            f"{row['tpot_ms']['p50']:.1f}",
            f"{row['tpot_ms']['p99']:.1f}",
        )
    console.print(table)
    least = min(row["share"] for row in results["measured"].values())
    if least < LEAST_SHARE:
        console.print(
            f"[yellow]warning[/] only {least:.0%} of the tokens that the endpoint delivered meanwhile were asked for here: others use it, "
            "and its acceptance is theirs too",
            soft_wrap=True,
        )


def _row(blocks: Sequence[dict[str, Any]]) -> dict[str, Any]:
    counters = [block["counters"] for block in blocks]
    drafts, accepted = (
        sum(each[name] for each in counters) for name in ("drafts", "accepted_tokens")
    )
    positions = zip(
        *(each["accepted_per_position"] for each in counters if each["accepted_per_position"]),
        strict=True,
    )
    row = pooled(blocks)
    return {
        **row,
        "drafts": drafts,
        "acceptance_length": 1 + accepted / drafts if drafts else None,
        "cumulative": [sum(counts) / drafts for counts in positions] if drafts else [],
        "share": row["output_tokens"] / max(sum(each["generation_tokens"] for each in counters), 1),
    }


def _model(url: str) -> str:
    """The name under which the endpoint serves, the first if it has several."""
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as response:
            return json.load(response)["data"][0]["id"]
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise OutriderError(
            f"--endpoint {url}: {url}/v1/models does not name a model ({error}); give the address of a vLLM server, such as "
            "http://127.0.0.1:8000"
        ) from None
