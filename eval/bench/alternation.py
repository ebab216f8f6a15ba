"""How many requests one drafter answers before the next is loaded.

    alternation(swap_seconds=0.03, request_seconds=2.0)     # 1: alternate by request
    alternation(swap_seconds=20.0, request_seconds=30.0)    # 6

Alternating by request shares the machine's noise best. Each change loads the other drafter's
weights (`Server.swap_seconds`): 0.03 s for nano R1, and for R1's 11.6 GB at least the time to read
them, 12 s at 1 GB/s.
"""

import math

SHARE_OF_SWAPS = 0.1
"""Largest share of the time that may go to loading weights."""


def alternation(swap_seconds: float, request_seconds: float) -> int:
    """Requests between two swaps, so that swaps take at most `SHARE_OF_SWAPS` of the time."""
    least = swap_seconds * (1 - SHARE_OF_SWAPS) / (SHARE_OF_SWAPS * request_seconds)
    return max(math.ceil(least), 1)
