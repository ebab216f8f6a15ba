"""Counts from the text of vLLM's `/metrics`, since a server's start or since an earlier scrape.

    now = read_scrape("http://10.0.0.7:8000")
    window = MetricsWindow((now.since(read_scrape("yesterday.txt")),))
    window.acceptance_length, window.k, window.tpot_ms, window.load

Names are those of vLLM 0.32 (vllm/v1/metrics/loggers.py, vllm/v1/spec_decode/metrics.py). Every
engine step that delivers tokens to a request after its first token adds one observation to
`inter_token_latency_seconds` (vllm/v1/metrics/stats.py, `update_from_output`). So

    steps              = its count, with or without drafts
    acceptance length  = (generation_tokens - first tokens) / steps
    TPOT               = its sum / (generation_tokens - first tokens)
    load               = (steps + first tokens) / engine iterations: requests per engine step

All counters restart at zero with the server. A restart is recognized by a counter that fell, or by
another value of `generation_tokens_created`.
"""

import functools
import http.client
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from outrider.common.errors import OutriderError
from outrider.serving.client import read_metrics

GENERATED = "vllm:generation_tokens_total"
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
ACCEPTED_BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
CACHE_QUERIES = "vllm:prefix_cache_queries_total"
CACHE_HITS = "vllm:prefix_cache_hits_total"
ITERATIONS = "vllm:iteration_tokens_total_count"
STEPS = "vllm:inter_token_latency_seconds_count"
STEP_SECONDS = "vllm:inter_token_latency_seconds_sum"
FIRST_TOKENS = "vllm:time_to_first_token_seconds_count"
FIRST_TOKEN_BUCKETS = "vllm:time_to_first_token_seconds_bucket"
FINISHED = "vllm:request_generation_tokens_count"
FINISHED_TOKENS = "vllm:request_generation_tokens_sum"
PROMPTS = "vllm:request_prompt_tokens_count"
PROMPT_TOKENS = "vllm:request_prompt_tokens_sum"
RUNNING = "vllm:num_requests_running"
CREATED = "vllm:generation_tokens_created"

REQUIRED = (GENERATED, ITERATIONS, STEPS, STEP_SECONDS, FIRST_TOKENS, FINISHED, PROMPTS)
"""Metrics that every vLLM 0.32 server has, with speculation or without."""
OPTIONAL = (DRAFTS, DRAFT_TOKENS, ACCEPTED, ACCEPTED_BY_POSITION, CACHE_QUERIES, CACHE_HITS)
HISTOGRAMS = (FIRST_TOKEN_BUCKETS, FINISHED_TOKENS, PROMPT_TOKENS)
COUNTED = frozenset((*REQUIRED, *OPTIONAL, *HISTOGRAMS))
"""Metrics that only grow while a server runs."""

PER_SERIES = frozenset(("le", "position"))
"""Labels that divide one engine's metric into several series."""

Labels = frozenset[tuple[str, str]]


class MetricSeries(NamedTuple):
    """One line of the text: a metric and its labels."""

    name: str
    labels: Labels

    @property
    def engine(self) -> Labels:
        """The labels that identify the engine."""
        return frozenset(pair for pair in self.labels if pair[0] not in PER_SERIES)

    def label(self, name: str) -> str:
        """The value of a label."""
        return dict(self.labels)[name]


@dataclass(frozen=True)
class Scrape:
    """The counts of one server, which may have several engines."""

    source: str
    """File or address"""
    model: str
    """`model_name`: the name under which the server offers its model"""
    counts: Mapping[MetricSeries, float]
    """The metrics of `COUNTED`"""
    created: Mapping[Labels, float]
    """Engine -> Unix time at which its counters were created; empty if vLLM does not report it"""
    running: float
    """Number of running requests at the scrape"""
    has_one_frontend: bool
    """Whether one process counts. vLLM with several API servers (the default with data parallelism)
    merges their counts, and counts an engine step once for each of them."""

    def since(self, earlier: "Scrape") -> "Scrape":
        """The counts since an earlier scrape of the same server."""
        restarted = any(
            self.created.get(engine, time) != time for engine, time in earlier.created.items()
        )
        counts = {
            series: self.counts.get(series, -1.0) - count
            for series, count in earlier.counts.items()
        }
        if restarted or min(counts.values()) < 0:
            raise OutriderError(
                f"{self.source}: its counters do not continue those of {earlier.source}; the server"
                " restarted in between, or they are of different servers. Leave --since out: the"
                " counts then begin at the server's start"
            )
        return replace(self, counts=dict(self.counts) | counts)

    def total(self, name: str) -> float:
        """A metric's sum over all engines."""
        return sum(count for series, count in self.counts.items() if series.name == name)

    @property
    def load(self) -> float | None:
        """Mean number of requests in an engine step, summed over engines; None if unknown."""
        if not self.has_one_frontend:
            return self.running or None
        requests: dict[Labels, float] = defaultdict(float)
        iterations: dict[Labels, float] = defaultdict(float)
        for series, count in self.counts.items():
            if series.name in (STEPS, FIRST_TOKENS):
                requests[series.engine] += count
            elif series.name == ITERATIONS:
                iterations[series.engine] += count
        batches = [requests[engine] / count for engine, count in iterations.items() if count]
        return sum(batches) or None


@dataclass(frozen=True)
class MetricsWindow:
    """The counts of one or more servers, pooled."""

    servers: Sequence[Scrape]

    def total(self, name: str) -> float:
        """A metric's sum over all servers."""
        return sum(server.total(name) for server in self.servers)

    def _ratio(self, numerator: str, denominator: str) -> float | None:
        count = self.total(denominator)
        return self.total(numerator) / count if count else None

    @property
    def speculates(self) -> bool:
        """Whether all servers have counters of speculation."""
        return all(
            any(series.name == DRAFTS for series in server.counts) for server in self.servers
        )

    @property
    def requests(self) -> int:
        """Number of finished requests."""
        return round(self.total(FINISHED))

    @property
    def steps(self) -> float:
        """Number of steps after the prefill, counted once per request, with or without drafts."""
        return self.total(STEPS)

    @property
    def later_tokens(self) -> float:
        """Tokens after each response's first, which the prefill produces."""
        return self.total(GENERATED) - self.total(FIRST_TOKENS)

    @property
    def acceptance_length(self) -> float:
        """Delivered tokens per step."""
        return self.later_tokens / self.steps

    @functools.cached_property
    def accepted_by_position(self) -> list[float]:
        """Entry j: number of steps whose first j + 1 drafts were all accepted."""
        sums: dict[int, float] = defaultdict(float)
        for server in self.servers:
            for series, count in server.counts.items():
                if series.name == ACCEPTED_BY_POSITION:
                    sums[int(series.label("position"))] += count
        return [sums[position] for position in sorted(sums)]

    def length_at(self, k: int) -> float:
        """Acceptance length if only the first k drafts of each step counted."""
        accepted = self.accepted_by_position
        share = (self.steps + sum(accepted[:k])) / (self.steps + sum(accepted))
        # Counted drafts include those past the end of a response, which are not delivered.
        return self.acceptance_length * share

    @property
    def length_variance(self) -> float:
        """Variance of a step's number of accepted drafts, from the counts by position."""
        shares = [count / self.steps for count in self.accepted_by_position]
        # E[a^2] is the sum over j of (2 j - 1) P(a >= j).
        square = sum((2 * j - 1) * share for j, share in enumerate(shares, start=1))
        return max(square - sum(shares) ** 2, 0.0)

    @property
    def most_drafts(self) -> int:
        """`num_speculative_tokens` of the engine: the number of counted positions."""
        return len(self.accepted_by_position)

    @property
    def k(self) -> float:
        """Mean number of drafted tokens in steps with drafts; 0 without drafts."""
        return self._ratio(DRAFT_TOKENS, DRAFTS) or 0.0

    @property
    def tpot_ms(self) -> float:
        """Milliseconds per output token after the first, over all tokens."""
        return 1000 * self.total(STEP_SECONDS) / self.later_tokens

    @property
    def load(self) -> float | None:
        """Requests in an engine step of a server, weighted by the servers' steps."""
        weighted = 0.0
        for server in self.servers:
            steps = server.total(STEPS)
            if steps and server.load is None:
                return None
            weighted += (server.load or 0.0) * steps
        return weighted / self.steps

    @property
    def prefix_hits(self) -> float | None:
        """Share of prompt tokens found in the prefix cache; None without a cache."""
        return self._ratio(CACHE_HITS, CACHE_QUERIES)

    @property
    def prompt_tokens(self) -> float | None:
        """Mean length of the finished requests' prompts."""
        return self._ratio(PROMPT_TOKENS, PROMPTS)

    @property
    def response_tokens(self) -> float | None:
        """Mean length of the finished responses."""
        return self._ratio(FINISHED_TOKENS, FINISHED)

    def first_token_ms(self, share: float) -> tuple[float, float] | None:
        """The bucket, in milliseconds, that holds this quantile of the time to first token.

        None for the bucket without an upper end.
        """
        buckets: dict[float, float] = defaultdict(float)
        for server in self.servers:
            for series, count in server.counts.items():
                if series.name == FIRST_TOKEN_BUCKETS:
                    buckets[float(series.label("le"))] += count
        lower = 0.0
        for upper in sorted(buckets):
            if buckets[upper] >= share * self.total(FIRST_TOKENS):
                return None if math.isinf(upper) else (1000 * lower, 1000 * upper)
            lower = upper
        return None


def read_scrape(source: str, model: str | None = None) -> Scrape:
    """Reads a server's address, or a file with the text of its `/metrics`.

    `model` chooses one of several names. Raises an `OutriderError` for anything but such text.
    """
    series = _parsed(source, _text(source))
    named = {labels for name, labels in series if name == GENERATED}
    models = sorted({dict(labels).get("model_name", "") for labels in named})
    if not models:
        raise OutriderError(
            f"{source}: no {GENERATED}, but {_first_names(series)}; give the /metrics of vLLM"
            " itself, such as http://HOST:8000, and start it without --disable-log-stats"
        )
    if model is None and len(models) > 1:
        raise OutriderError(
            f"{source}: counts of several models, {', '.join(models)}; choose one with --model"
        )
    chosen = models[0] if model is None else model
    if chosen not in models:
        raise OutriderError(
            f"{source}: no model {chosen}, but {', '.join(models)}; correct --model"
        )
    own = {key: value for key, value in series.items() if ("model_name", chosen) in key.labels}
    scrape = Scrape(
        source=source,
        model=chosen,
        counts={key: value for key, value in own.items() if key.name in COUNTED},
        created={key.engine: value for key, value in own.items() if key.name == CREATED},
        running=sum(value for key, value in own.items() if key.name == RUNNING),
        # prometheus_client's multi-process mode has no metrics of the process.
        has_one_frontend=any(key.name == "process_start_time_seconds" for key in series),
    )
    _check(scrape)
    return scrape


def check_distinct(scrapes: Sequence[Scrape]) -> None:
    """Refuses two scrapes of one server, as far as vLLM reports when its counters began."""
    seen: dict[tuple[Labels, float], str] = {}
    for scrape in scrapes:
        for engine in scrape.created.items():
            if engine in seen:
                raise OutriderError(
                    f"{seen[engine]} and {scrape.source} are of the same server, which did not"
                    " restart in between; give the earlier one to --since"
                )
            seen[engine] = scrape.source


def _text(source: str) -> str:
    """The text at an address or in a file."""
    if source.startswith(("http://", "https://")):
        url = source.rstrip("/").removesuffix("/metrics").removesuffix("/v1")
        try:
            return read_metrics(url)
        except (ValueError, http.client.HTTPException) as error:
            raise OutriderError(
                f"{source}: no metrics ({error}); give the address of vLLM itself, such as"
                " http://HOST:8000"
            ) from None
    try:
        return Path(source).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise OutriderError(
            f"{source}: no such file; give a file with the text of /metrics, or an address such as"
            " http://HOST:8000"
        ) from None
    except OSError as error:
        raise OutriderError(
            f"{source}: cannot be read ({error.strerror}); give a file with the text of /metrics"
        ) from None
    except UnicodeDecodeError:
        raise OutriderError(
            f"{source}: not UTF-8 text; save it with `curl -s http://HOST:8000/metrics -o FILE`"
        ) from None


def _parsed(source: str, text: str) -> dict[MetricSeries, float]:
    """All series of the text."""
    from prometheus_client.parser import text_string_to_metric_families

    parsed: dict[MetricSeries, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                series = MetricSeries(sample.name, frozenset(sample.labels.items()))
                if series in parsed:
                    raise OutriderError(
                        f"{source}: {sample.name} is there twice with the same labels; give each"
                        " server's metrics as a file of its own"
                    )
                parsed[series] = float(sample.value)
    # The parser indexes empty strings where a line is cut.
    except (ValueError, IndexError) as error:
        raise OutriderError(
            f"{source}: not the text of /metrics ({str(error)[:80] or 'a line cannot be parsed'});"
            " save it with `curl -s http://HOST:8000/metrics -o FILE`"
        ) from None
    return parsed


def _first_names(series: Mapping[MetricSeries, float]) -> str:
    """A few metrics of the text, for a message."""
    names = [*dict.fromkeys(name for name, _ in series)]
    return f"{', '.join(names[:3])}, ..." if names else "nothing that can be read"


def _check(scrape: Scrape) -> None:
    """Refuses missing metrics, and values that no counter has."""
    names = {series.name for series in scrape.counts}
    for name in REQUIRED:
        if name not in names:
            raise OutriderError(
                f"{scrape.source}: no {name}; the text is cut, or of another release than vLLM"
                " 0.32: save all of it with `curl -s http://HOST:8000/metrics -o FILE`"
            )
    for series, count in scrape.counts.items():
        if not (math.isfinite(count) and count >= 0):
            raise OutriderError(
                f"{scrape.source}: {series.name} is {count:g}, which no count can be; scrape again"
            )
        if not _has_its_label(series):
            raise OutriderError(
                f"{scrape.source}: {series.name} without a bucket or position; scrape again"
            )


def _has_its_label(series: MetricSeries) -> bool:
    """Whether a bucket or a position has the label that names it."""
    labels = dict(series.labels)
    if series.name == ACCEPTED_BY_POSITION:
        return labels.get("position", "").isdecimal()
    if series.name != FIRST_TOKEN_BUCKETS:
        return True
    try:
        return not math.isnan(float(labels.get("le", "")))
    except ValueError:
        return False
