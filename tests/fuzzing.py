"""Random examples of the property tests: few in `make test`, many in `make test-long`.

    @examples(50)
    @given(...)

OUTRIDER_FUZZ=100 draws a hundred times as many, and new ones each time.
"""

import os

from hypothesis import HealthCheck, settings

FACTOR = int(os.environ.get("OUTRIDER_FUZZ", "1"))


def examples(count: int) -> settings:
    """Settings of a property test that draws `count` examples in `make test`."""
    return settings(
        max_examples=count * FACTOR, deadline=None, suppress_health_check=list(HealthCheck)
    )


def register_profile() -> None:
    """In `make test` the same examples every time: a failure comes from the change under test."""
    settings.register_profile("outrider", derandomize=FACTOR == 1, deadline=None)
    settings.load_profile("outrider")
