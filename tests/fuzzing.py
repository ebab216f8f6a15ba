"""Random examples of the property tests: few in `make test`, many in `make test-long`.

    @examples(50)
    @given(...)

OUTRIDER_FUZZ=100 draws a hundred times as many, and new ones each time.
"""

import copy
import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

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


NUMBERS = st.integers() | st.floats() | st.just(10**400)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
"""Any value that JSON can have, with NaN and integers that no machine word holds."""


def changed(value: dict[str, Any]) -> st.SearchStrategy[Any]:
    """A valid object with any of its values replaced, removed or added; or another value."""
    others = st.dictionaries(st.sampled_from([*value, "new"]), ANY_JSON, max_size=3)
    removed = st.sets(st.sampled_from(list(value)), max_size=2)
    return ANY_JSON | st.builds(
        lambda more, less: {key: one for key, one in {**value, **more}.items() if key not in less},
        others,
        removed,
    )


@st.composite
def damaged(draw: st.DrawFn, value: Any) -> Any:
    """Valid JSON of which one value, at any depth, is replaced or removed."""
    value = copy.deepcopy(value)
    inner = value
    key: Any = None
    while isinstance(inner, dict | list) and inner:
        outer = inner
        key = draw(st.sampled_from(list(outer) if isinstance(outer, dict) else range(len(outer))))
        inner = outer[key]
        if draw(st.booleans()):
            break
    if key is None:
        return draw(ANY_JSON)
    if draw(st.booleans()):
        del outer[key]
    else:
        outer[key] = draw(ANY_JSON)
    return value


def any_json(value: dict[str, Any] | list[Any]) -> st.SearchStrategy[Any]:
    """Valid JSON, changed at the top or at any depth, or any other JSON."""
    changes = damaged(value) | ANY_JSON
    return changes | changed(value) if isinstance(value, dict) and value else changes
