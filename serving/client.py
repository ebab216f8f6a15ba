"""Requests completions as token ids and reads a server's speculation counters.

sampling = Sampling(temperature=0)
before = read_counters(url)
completions = complete(server.url, server.model_name, [[0, 17, 4]], sampling, max_tokens=64)
print((read_counters(url) - before).acceptance_length)
"""

import itertools
import json
import operator
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from outrider.common.errors import OutriderError


@dataclass(frozen=True)
class SpeculationCounters:
    """Counts since the engine's start; `later - earlier` gives the counts in between."""

    drafts: int
    """Steps with drafts, counted once per request."""
    draft_tokens: int
    """Drafted tokens."""
    accepted_tokens: int
    """Drafted tokens that the target accepted, including those past a request's max_tokens."""
    accepted_per_position: tuple[int, ...]
    """Entry j: number of steps whose first j + 1 drafts were all accepted."""
    generation_tokens: int
    """Delivered tokens, including each request's first token, which its prefill produces."""
    queried_tokens: int = 0
    """Prompt tokens that were looked up in the prefix cache; 0 in counts of single responses."""
    cached_tokens: int = 0
    """Those that were found in it."""
    preemptions: int = 0
    """Times that a running request lost its KV cache, because others needed the memory."""

    def __sub__(self, earlier: "SpeculationCounters") -> "SpeculationCounters":
        return self._combined(earlier, operator.sub)

    def __add__(self, more: "SpeculationCounters") -> "SpeculationCounters":
        return self._combined(more, operator.add)

    def _combined(
        self, right: "SpeculationCounters", combine: Callable[[int, int], int]
    ) -> "SpeculationCounters":
        # Servers with different k have different numbers of positions.
        positions = itertools.zip_longest(
            self.accepted_per_position, right.accepted_per_position, fillvalue=0
        )
        return SpeculationCounters(
            drafts=combine(self.drafts, right.drafts),
            draft_tokens=combine(self.draft_tokens, right.draft_tokens),
            accepted_tokens=combine(self.accepted_tokens, right.accepted_tokens),
            accepted_per_position=tuple(itertools.starmap(combine, positions)),
            generation_tokens=combine(self.generation_tokens, right.generation_tokens),
            queried_tokens=combine(self.queried_tokens, right.queried_tokens),
            cached_tokens=combine(self.cached_tokens, right.cached_tokens),
            preemptions=combine(self.preemptions, right.preemptions),
        )

    @classmethod
    def of_response(cls, metrics: Mapping[str, Any] | None, tokens: int) -> "SpeculationCounters":
        """Returns the counts for a response of `tokens` tokens.

        `metrics` is vLLM's `metrics.speculative_decoding`, None without speculation. vLLM 0.32
        updates it together with the engine's counters (`Scheduler.update_from_output`).
        """
        if metrics is None:
            return cls(
                drafts=0,
                draft_tokens=0,
                accepted_tokens=0,
                accepted_per_position=(),
                generation_tokens=tokens,
            )
        histogram = metrics["acceptance_histogram"]  # steps by number of accepted drafts
        return cls(
            drafts=metrics["num_spec_steps"],
            draft_tokens=metrics["num_draft_tokens"],
            accepted_tokens=metrics["num_accepted_draft_tokens"],
            accepted_per_position=tuple(
                sum(histogram[position:]) for position in range(1, len(histogram))
            ),
            generation_tokens=tokens,
        )

    @property
    def acceptance_length(self) -> float:
        """Tokens per speculative step: 1 + accepted / drafts; 1 without drafts."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else 1.0


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters of the target."""

    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 0
    """0 means no limit."""

    def request(self) -> dict[str, Any]:
        """Returns the parameters as request fields, including disabled ones.

        The server would take missing fields from the target's generation_config.json.
        """
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
        }


@dataclass(frozen=True)
class Completion:
    """A response, with the exact tokens that the engine produced."""

    token_ids: list[int]
    """Token ids, including the end-of-sequence token, if any."""
    counters: SpeculationCounters
    """The engine's counts for this response."""


def complete(
    url: str,
    model: str,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    max_tokens: int,
    concurrency: int = 8,
    fields: Sequence[Mapping[str, Any]] | None = None,
    engine: int | None = None,
) -> list[Completion]:
    """Returns responses to `prompts` in order, with `concurrency` requests in flight.

    `prompts` are token ids; `fields` has further fields of each one's request. With data
    parallelism, `engine` is the engine that answers; None: the server's choice.
    The first error is raised after all requests have ended.
    """
    # vllm/entrypoints/generate/base/serving.py:225
    headers = {} if engine is None else {"X-data-parallel-rank": str(engine)}
    timeout_s = 600 + max_tokens * concurrency / 10.0  # enough at 10 tokens/s

    def one(index: int) -> Completion:
        body: dict[str, Any] = {
            "model": model,
            "prompt": list(prompts[index]),
            "max_tokens": max_tokens,
            **sampling.request(),
            "return_token_ids": True,
        }
        if fields is not None:
            body |= fields[index]
        answer = post(
            url=url, path="/v1/completions", body=body, timeout_s=timeout_s, headers=headers
        )
        (choice,) = answer["choices"]
        speculation = (answer.get("metrics") or {}).get("speculative_decoding")
        counters = SpeculationCounters.of_response(speculation, len(choice["token_ids"]))
        return Completion(choice["token_ids"], counters)

    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(one, range(len(prompts))))


def post(
    url: str,
    path: str,
    body: dict[str, Any],
    timeout_s: float = 600,
    headers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Sends a POST request and returns the JSON response.

    Raises an `OutriderError` with the server's message for an error status or a lost connection.
    """
    request = urllib.request.Request(
        url + path,
        json.dumps(body).encode(),
        {"Content-Type": "application/json", **(headers or {})},
    )
    return dict(json.loads(_answer(request, timeout_s)))


def _answer(request: urllib.request.Request, timeout_s: float) -> str:
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return str(response.read(), "utf-8")
    except urllib.error.HTTPError as error:
        raise OutriderError(
            f"{request.full_url}: {error.code} {error.read().decode(errors='replace')[:2000]}"
        ) from error
    except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
        raise OutriderError(
            f"{request.full_url}: no answer ({error}); if the server has ended, its log has the"
            " reason"
        ) from error


def read_metrics(url: str) -> str:
    """Returns the text of the metrics of the server at `url`."""
    return _answer(urllib.request.Request(url + "/metrics"), 30)


GENERATED = "vllm:generation_tokens_total"


def read_counters(url: str) -> SpeculationCounters:
    """Reads the counters of the server at `url`, summed over its engines."""
    from prometheus_client.parser import text_string_to_metric_families

    text = read_metrics(url)
    sums: dict[str, int] = {}
    positions: Counter[int] = Counter()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "vllm:spec_decode_num_accepted_tokens_per_pos_total":
                positions[int(sample.labels["position"])] += int(sample.value)
            elif sample.name.endswith("_total"):
                sums[sample.name] = sums.get(sample.name, 0) + int(sample.value)
    if GENERATED not in sums:
        raise OutriderError(f"{url}/metrics: no {GENERATED}; give the address of a vLLM server")
    return SpeculationCounters(
        drafts=sums.get("vllm:spec_decode_num_drafts_total", 0),
        draft_tokens=sums.get("vllm:spec_decode_num_draft_tokens_total", 0),
        accepted_tokens=sums.get("vllm:spec_decode_num_accepted_tokens_total", 0),
        accepted_per_position=tuple(positions[position] for position in sorted(positions)),
        generation_tokens=sums[GENERATED],
        queried_tokens=sums.get("vllm:prefix_cache_queries_total", 0),
        cached_tokens=sums.get("vllm:prefix_cache_hits_total", 0),
        preemptions=sums.get("vllm:num_preemptions_total", 0),
    )


@dataclass(frozen=True)
class KvCache:
    """The KV cache of each of a server's engines."""

    tokens: int
    """Number of tokens for which it has memory."""
    block_size: int
    """Tokens in a block; a prefix is cached in whole blocks."""
    keeps_prefixes: bool
    """Whether requests find what earlier ones have left in it."""
    engines: int = 1
    """Number of engines: with data parallelism several, which share no cache."""


def read_kv_cache(url: str) -> KvCache:
    """Reads the size of the KV cache of the server at `url`; its engines have equal ones."""
    from prometheus_client.parser import text_string_to_metric_families

    engines = [
        sample.labels
        for family in text_string_to_metric_families(read_metrics(url))
        for sample in family.samples
        if sample.name == "vllm:cache_config_info"
    ]
    labels = engines[0]
    return KvCache(
        tokens=int(labels["kv_cache_size_tokens"]),
        block_size=int(labels["block_size"]),
        keeps_prefixes=labels["enable_prefix_caching"] == "True",
        engines=len(engines),
    )
