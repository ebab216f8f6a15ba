"""`/metrics` of simulated servers, in the text that vLLM wrote for real ones.

    text = served_text(length=2.95, load=4.0, tpot_ms=3.1)
    confirm(sample_report(), MetricsWindow([scrape_of(text, tmp_path / "seen.txt")]))

The counts of `recorded/` are replaced; names, labels and order of the lines stay vLLM's.
"""

import functools
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from outrider.eval.confirm.scrape import Scrape, read_scrape
from outrider.eval.results.report import Report
from tests.eval.sample_results import sample_results

RECORDED = Path(__file__).parent / "recorded"
MODEL = "short_r1"
ENGINE = f'engine="0",model_name="{MODEL}"'
ACCEPTED = 0.8
"""Probability that a draft of custom is accepted in the sample report; of base 0.6."""
RESPONSE_TOKENS = 180
PROMPT_TOKENS = 200


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.txt").read_text(encoding="utf-8")


@functools.cache
def sample_report() -> Report:
    """Base at K = 2, custom at K = 3, with the log's lengths."""
    bins = {"n": 1000, "p50": 170, "p90": 290, "p99": 298, "max": 298}
    traffic = {
        "prompt_tokens": 1000 * PROMPT_TOKENS,
        "completion_tokens": 1000 * RESPONSE_TOKENS,
        "lengths": {"prompt": bins, "completion": bins},
    }
    return sample_results().model_copy(update={"target": f"models/{MODEL}", "traffic": traffic})


def rewritten(text: str, counts: Mapping[str, float]) -> str:
    """The text with other values on the lines of these series; all must be there."""
    lines = []
    rest = dict(counts)
    for line in text.splitlines():
        series = line.rpartition(" ")[0]
        value = rest.pop(series, None)
        lines.append(line if value is None else f"{series} {float(value)!r}")
    assert not rest, rest
    return "\n".join(lines) + "\n"


def served_text(
    *,
    k: int = 3,
    accepted: float = ACCEPTED,
    requests: int = 400,
    tokens: int = RESPONSE_TOKENS,
    prompt_tokens: int = PROMPT_TOKENS,
    load: float = 1.0,
    tpot_ms: float = 2.4,
    ttft_ms: float = 28.0,
    hits: float = 0.0,
    seed: int = 0,
) -> str:
    """A server's counts since its start; responses vary as those of the sample report."""
    random = np.random.default_rng(seed)
    reached = accepted ** np.arange(1, k + 1)
    tokens_R = random.integers(tokens // 3, 5 * tokens // 3, requests)
    noise_R = random.normal(1, 0.05, requests)
    steps = int((tokens_R / (1 + reached.sum()) * noise_R).sum())
    exactly = -np.diff([1.0, *reached, 0.0])
    histogram = random.multinomial(steps, exactly)
    positions = [int(histogram[position:].sum()) for position in range(1, k + 1)]
    # Noise of a response changes how many tokens its steps deliver.
    later = int(tokens_R.sum())
    accepted_tokens = later - steps
    positions = [round(count * accepted_tokens / sum(positions)) for count in positions]
    first = requests
    by_name: dict[str, float] = {
        "spec_decode_num_drafts_total": steps,
        "spec_decode_num_draft_tokens_total": k * steps,
        "spec_decode_num_accepted_tokens_total": accepted_tokens,
        "generation_tokens_total": later + first,
        "generation_tokens_created": 1.8e9 + seed,
        "prefix_cache_queries_total": requests * prompt_tokens,
        "prefix_cache_hits_total": round(hits * requests * prompt_tokens),
        "iteration_tokens_total_count": round((steps + first) / load),
        "inter_token_latency_seconds_count": steps,
        "inter_token_latency_seconds_sum": later * tpot_ms / 1000,
        "time_to_first_token_seconds_count": first,
        "request_generation_tokens_count": requests,
        "request_generation_tokens_sum": later + first,
        "request_prompt_tokens_count": requests,
        "request_prompt_tokens_sum": requests * prompt_tokens,
    }
    counts = {f"vllm:{name}{{{ENGINE}}}": value for name, value in by_name.items()}
    template = recorded("k3_second" if k == 3 else "k2_second")
    for position, count in enumerate(positions):
        name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
        counts[f'{name}{{{ENGINE},position="{position}"}}'] = count
    for line in template.splitlines():
        if line.startswith("vllm:time_to_first_token_seconds_bucket"):
            series = line.rpartition(" ")[0]
            limit = float(series.partition('le="')[2].partition('"')[0])
            counts[series] = first if limit >= ttft_ms / 1000 else 0
    return rewritten(template, counts)


def scrape_of(text: str, path: Path) -> Scrape:
    """Reads the text as the command does, from a file."""
    path.write_text(text, encoding="utf-8")
    return read_scrape(str(path))
