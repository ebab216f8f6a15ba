"""Which engines and numbers of drafts the choice of the kind times."""

from types import SimpleNamespace

import pytest

from outrider.eval import kind_turns as module
from outrider.eval.kind_turns import kind_turns, useful_numbers
from outrider.serving.speculator import Speculator


@pytest.mark.parametrize(
    ("lengths", "useful"),
    [
        ([1.5, 1.9, 2.1, 2.2], [1, 2, 3, 4]),
        ([1.5, 1.9, 1.91, 1.918], [1, 2]),
        # Many small gains add up.
        ([1.5, 1.509, 1.518, 1.527], [1, 3]),
        ([1.0, 1.0, 1.0, 1.0], [1]),
    ],
)
def test_a_number_that_hardly_accepts_more_than_a_smaller_one_is_not_timed(lengths, useful) -> None:
    assert useful_numbers([4, 1, 2, 3], lengths) == useful


class Head(SimpleNamespace):
    """A speculator with weights of a shape."""

    speculates = True
    drafter_kind = SimpleNamespace(has_weights=True, fixed_k=False)

    def swaps_with(self, other: "Head") -> bool:
        return self.shape == getattr(other, "shape", None)


@pytest.mark.parametrize(
    ("runners", "changes_drafters", "timed"),
    [
        # One engine of each: heads of one shape, lookups of one runner, no speculation.
        ({}, True, {"small": "small", "large": "large", "base": "large", "ngram": "suffix"}),
        ({"ngram": "v2"}, True, {"base": "large", "ngram": "ngram", "suffix": "suffix"}),
        # With data parallelism weights cannot be swapped, so base has an engine of its own.
        ({}, False, {"base": "base", "ngram": "suffix"}),
    ],
)
def test_steps_that_take_equally_long_are_timed_once(
    monkeypatch: pytest.MonkeyPatch, runners, changes_drafters, timed
) -> None:
    speculators = {
        "small": Head(shape=1, kind="small"),
        "large": Head(shape=2, kind="large"),
        "ngram": Speculator("ngram"),
        "suffix": Speculator("suffix"),
        "base": Head(shape=2, kind="large"),
        "none": Speculator("none"),
    }
    lengths = {kind: [1.0, 1.0] for kind in speculators} | {
        "suffix": [1.2, 1.9],
        "ngram": [1.4, 1.5],
    }
    monkeypatch.setattr(module, "runner_of", lambda kind, engine: runners.get(kind.name, "v1"))
    engine = SimpleNamespace(changes_drafters=changes_drafters)
    drafts = dict.fromkeys(speculators, (0, 1, 2))
    timed_as, numbers = kind_turns(speculators, lengths, drafts, engine)
    assert timed_as["none"] == "none" and timed_as["suffix"] == "suffix"
    assert {kind: timed_as[kind] for kind in timed} == timed
    assert numbers.keys() == {*timed_as.values()}
    assert numbers["none"] == [0] and numbers["small"] == [1] and numbers["suffix"] == [1, 2]
