"""speculation_profile.json: what a speculator was measured to accept, position by position.

    profile = SpeculationProfile.of("mtp", target, marginal, intervals, lengths, depth, conditions)
    write_json(bundle / PROFILE, profile.model_dump(mode="json"))

The fields are those of NVIDIA Model-Optimizer's proposal (schema 1.0, pull requests 2247 and 2313),
so that simulators and vLLM's synthetic acceptance read it. Ours are `intervals`, and what
`measurement_conditions` holds. Draft positions count from 1; a step's acceptance length is its
accepted drafts and the target's own token.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, model_validator

from outrider.serving.config import TargetConfig
from outrider.speculators.kinds import KINDS

PROFILE = "speculation_profile.json"


class SpeculationProfile(BaseModel):
    """Acceptance of one speculator at one number of drafts."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    schema_version: Literal["1.0"] = "1.0"
    measured: Literal[True] = True
    method: str
    target_model: dict[str, str | None]
    num_speculative_tokens: int
    max_supported_k: int
    block_size: int | None
    """Drafts of a speculator whose drafts depend on their number."""
    verification_method: Literal["longest_prefix"] = "longest_prefix"
    conditional_accept_rates: list[float]
    """Probability that the draft is accepted if all before it were, by position."""
    marginal_accept_rates: list[float]
    """Share of steps that accept all drafts up to the position."""
    intervals: list[tuple[float, float] | None]
    """95 % intervals of the marginal rates; null where the sessions are few, or none accepted."""
    mean_accept_length: float
    accept_length_model: Literal["chain_analytic", "measured_per_k"]
    accept_length_by_k: dict[int, float]
    """Delivered tokens per step; the last step of a response may lack the target's own."""
    acceptance_length_histogram: dict[int, float]
    """Acceptance length -> share of steps."""
    measurement_conditions: dict[str, Any]

    @classmethod
    def of(
        cls,
        method: str,
        target: TargetConfig,
        marginal: Sequence[float],
        intervals: Sequence[tuple[float, float] | None],
        lengths: Mapping[int, float],
        depth: int,
        conditions: dict[str, Any],
    ) -> Self:
        """From marginal rates at K drafts, and acceptance lengths by the number of drafts."""
        one_block = KINDS[method].abilities.one_block
        k, reached = len(marginal), [1.0, *marginal, 0.0]
        pairs = [*itertools.pairwise(reached)]
        # A path is of this machine; a published profile names the model alone.
        name = Path(target.model).name if Path(target.model).is_dir() else target.model
        return cls(
            method=method,
            target_model={"model": name, "revision": target.revision},
            num_speculative_tokens=k,
            max_supported_k=depth,
            block_size=k if one_block else None,
            conditional_accept_rates=[own / before if before else 0.0 for before, own in pairs[:k]],
            marginal_accept_rates=list(marginal),
            intervals=list(intervals),
            mean_accept_length=1 + sum(marginal),
            accept_length_model="measured_per_k" if one_block else "chain_analytic",
            accept_length_by_k=dict(lengths),
            acceptance_length_histogram={
                length: before - own for length, (before, own) in enumerate(pairs, start=1)
            },
            measurement_conditions=conditions,
        )

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        marginal, k = self.marginal_accept_rates, self.num_speculative_tokens
        reached = [1.0, *marginal, 0.0]
        if any(own > before + 1e-6 or own < 0 for before, own in itertools.pairwise(reached)):
            raise ValueError(f"marginal_accept_rates must fall from at most 1 to 0: {marginal}")
        if {len(marginal), len(self.conditional_accept_rates), len(self.intervals)} != {k}:
            raise ValueError(f"the rates must have num_speculative_tokens = {k} positions")
        histogram = self.acceptance_length_histogram
        mean = sum(length * share for length, share in histogram.items())
        if not math.isclose(mean, self.mean_accept_length, abs_tol=1e-6):
            raise ValueError(
                f"mean_accept_length = {self.mean_accept_length:.6f}, but the histogram's is"
                f" {mean:.6f}"
            )
        for each, own in zip(self.intervals, marginal, strict=True):
            if each and not each[0] - 1e-6 <= own <= each[1] + 1e-6:
                raise ValueError(f"the interval {each} does not hold the rate {own}")
        return self
