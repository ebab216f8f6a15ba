"""The engine's counters of speculation, from a server's /metrics.

before = read_counters(url)
...
print((read_counters(url) - before).acceptance_length)
"""

import itertools
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.common.errors import OutriderError


@dataclass(frozen=True)
class SpeculationCounters:
    """Counts since the engine's start; subtract two for the counts between them."""

    drafts: int
    """Steps with drafts, counted once per request."""
    draft_tokens: int
    """Drafted tokens."""
    accepted_tokens: int
    """Drafted tokens that the target accepted, including those past a request's max_tokens."""
    accepted_per_position: tuple[int, ...]
    """Entry j: drafts whose first j + 1 tokens were all accepted."""
    generation_tokens: int
    """Delivered tokens, including each request's first, from its prefill."""

    def __sub__(self, earlier: "SpeculationCounters") -> "SpeculationCounters":
        before = earlier.accepted_per_position or (0,) * len(self.accepted_per_position)
        return SpeculationCounters(
            self.drafts - earlier.drafts,
            self.draft_tokens - earlier.draft_tokens,
            self.accepted_tokens - earlier.accepted_tokens,
            tuple(now - then for now, then in zip(self.accepted_per_position, before, strict=True)),
            self.generation_tokens - earlier.generation_tokens,
        )

    def __add__(self, other: "SpeculationCounters") -> "SpeculationCounters":
        positions = itertools.zip_longest(
            self.accepted_per_position, other.accepted_per_position, fillvalue=0
        )
        return SpeculationCounters(
            self.drafts + other.drafts,
            self.draft_tokens + other.draft_tokens,
            self.accepted_tokens + other.accepted_tokens,
            tuple(one + two for one, two in positions),
            self.generation_tokens + other.generation_tokens,
        )

    @classmethod
    def of_response(cls, metrics: Mapping[str, Any] | None, tokens: int) -> "SpeculationCounters":
        """Counts of one response of `tokens`, from vLLM's `metrics.speculative_decoding`.

        None where the server does not speculate. vLLM 0.32 updates them in the same place as its
        counters (`Scheduler.update_from_output`).
        """
        if metrics is None:
            return cls(0, 0, 0, (), tokens)
        histogram = metrics["acceptance_histogram"]  # steps by number of accepted drafts
        return cls(
            metrics["num_spec_steps"],
            metrics["num_draft_tokens"],
            metrics["num_accepted_draft_tokens"],
            tuple(sum(histogram[position:]) for position in range(1, len(histogram))),
            tokens,
        )

    @property
    def acceptance_length(self) -> float:
        """Tokens per speculative step: 1 + accepted / drafts; 1 without drafts."""
        return 1 + self.accepted_tokens / self.drafts if self.drafts else 1.0


def read_counters(url: str) -> SpeculationCounters:
    """Counters of the server at `url`, summed over its engines."""
    from prometheus_client.parser import text_string_to_metric_families

    try:
        with urllib.request.urlopen(url + "/metrics", timeout=30) as response:
            text = response.read().decode()
    except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
        raise OutriderError(
            f"{url}/metrics: no answer ({error}); if the server has ended, its log has the reason"
        ) from error
    sums: dict[str, int] = {}
    positions: dict[int, int] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "vllm:spec_decode_num_accepted_tokens_per_pos_total":
                position = int(sample.labels["position"])
                positions[position] = positions.get(position, 0) + int(sample.value)
            elif sample.name.endswith("_total"):
                sums[sample.name] = sums.get(sample.name, 0) + int(sample.value)
    return SpeculationCounters(
        drafts=sums.get("vllm:spec_decode_num_drafts_total", 0),
        draft_tokens=sums.get("vllm:spec_decode_num_draft_tokens_total", 0),
        accepted_tokens=sums.get("vllm:spec_decode_num_accepted_tokens_total", 0),
        accepted_per_position=tuple(positions[position] for position in sorted(positions)),
        generation_tokens=sums["vllm:generation_tokens_total"],
    )
