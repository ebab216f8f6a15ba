"""A state of adaptation is a value: no entry changes one that somebody holds."""

import copy
import dataclasses

import numpy as np
import pytest

from outrider.adapt.state import AdaptState
from outrider.live.journal import Entry
from tests.adapt.simulated_windows import Story


def test_a_state_kept_across_an_entry_does_not_change(monkeypatch) -> None:
    states = []
    copies = []
    add = AdaptState.add

    def recorded(state, entry):
        states.append(state)
        copies.append(copy.deepcopy(state))
        return add(state, entry)

    monkeypatch.setattr(AdaptState, "add", recorded)
    story = Story(np.random.default_rng(0))
    story.add("start", position={"a": 0})
    story.window()
    story.add("window", window=2, rows=100, position={"b": 1})
    story.add("refused_window", window=2, reason="broken")
    story.round(ships=True)
    story.add("deleted", windows=[1, 2])
    assert len(states) == 10 and states == copies
    end = story.state
    assert end.position == {"a": 1, "b": 1} and end.rounds[0].won
    assert [window.deleted for window in end.windows.values()] == [True, True]
    for value in (end, end.windows[1], end.rounds[0]):
        with pytest.raises(dataclasses.FrozenInstanceError):
            value.n = 3


def test_events_of_deployments_change_nothing() -> None:
    facts = {"release": "old", "directory": "/old", "gpu_seconds": 3.0}
    assert AdaptState().add(Entry(1, 0.0, "adopt", facts)) == AdaptState()
