"""speculation_profile.json: what a speculator was measured to accept, position by position.

    profile = speculation_profile("mtp", target, marginal, intervals, lengths, depth, conditions)
    write_json(bundle / PROFILE, profile)

The fields are those of NVIDIA Model-Optimizer's proposal (schema 1.0, pull requests 2247 and 2313),
so that simulators and vLLM's synthetic acceptance read it. Ours are `intervals`, and what
`measurement_conditions` holds. Draft positions count from 1; a step's acceptance length is its
accepted drafts and the target's own token.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outrider.serving.config import TargetConfig
from outrider.speculators.kinds import KINDS

PROFILE = "speculation_profile.json"


def speculation_profile(
    method: str,
    target: TargetConfig,
    marginal: Sequence[float],
    intervals: Sequence[tuple[float, float] | None],
    lengths: Mapping[int, float],
    depth: int,
    conditions: dict[str, Any],
) -> dict[str, Any]:
    """From marginal rates at K drafts, and acceptance lengths by the number of drafts.

    `intervals` are 95 % intervals of the marginal rates, None where the sessions are few. In
    `lengths`, the last step of a response may lack the target's own token.
    """
    one_block = KINDS[method].abilities.one_block
    k, reached = len(marginal), [1.0, *marginal, 0.0]
    pairs = [*itertools.pairwise(reached)]
    # A path is of this machine; a published profile names the model alone.
    name = Path(target.model).name if Path(target.model).is_dir() else target.model
    return {
        "schema_version": "1.0",
        "measured": True,
        "method": method,
        "target_model": {"model": name, "revision": target.revision},
        "num_speculative_tokens": k,
        "max_supported_k": depth,
        # Drafts of a speculator whose drafts depend on their number.
        "block_size": k if one_block else None,
        "verification_method": "longest_prefix",
        # Probability that the draft is accepted if all before it were, by position.
        "conditional_accept_rates": [own / before if before else 0.0 for before, own in pairs[:k]],
        # Share of steps that accept all drafts up to the position.
        "marginal_accept_rates": list(marginal),
        "intervals": list(intervals),
        "mean_accept_length": 1 + sum(marginal),
        "accept_length_model": "measured_per_k" if one_block else "chain_analytic",
        "accept_length_by_k": dict(lengths),
        # Acceptance length -> share of steps.
        "acceptance_length_histogram": {
            length: before - own for length, (before, own) in enumerate(pairs, start=1)
        },
        "measurement_conditions": conditions,
    }
