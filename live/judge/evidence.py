"""What a bundle's evidence promises for live acceptance, for a replica to watch after a swap.

watch = watch_of(release, endpoint.policy)
replica.swap(release.directory, release.name, release.digest, "clear", watch)
"""

import math

from outrider.live.endpoint_file import CanaryPolicy
from outrider.live.releases import Release
from outrider.serving.admin.replica import Watch

LEVEL = 0.01
"""Probability that a watch takes back a speculator that holds what its evidence promises. It comes
on top of the canary's (decision.py), once for each replica."""


def watch_of(release: Release, policy: CanaryPolicy) -> Watch | None:
    """The least tokens per step that the release must not be shown to fall short of.

    The evaluated acceptance length, lowered by the uncertainty of its ratio to the base's (the
    evidence has no interval of its own) and by `policy.min_acceptance_ratio`: live traffic differs
    a little from held-out traffic. None without evidence, or with `watch_requests: 0`.
    """
    lengths = (release.manifest.get("evidence") or {}).get("acceptance_length") or {}
    length = lengths.get("custom")
    if not policy.watch_requests or not length or not math.isfinite(length):
        return None
    ratio, low = lengths.get("ratio"), (lengths.get("ratio_ci95") or [None])[0]
    if ratio and low:
        length *= min(low / ratio, 1.0)
    # Tokens per step are at least 1 whatever the drafter does.
    return Watch(policy.watch_requests, max(length * policy.min_acceptance_ratio, 1.0), LEVEL)
