"""A state is a value: no entry changes one that somebody holds."""

import copy
import dataclasses
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.common.errors import OutriderError
from outrider.live.journal import Entry, Journal, read_journal, state_after
from outrider.live.state import DeploymentVerdict, State
from tests.fuzzing import changed, examples

EVENTS = (
    ("adopt", {"release": "old", "directory": "/old"}),
    ("begin", {"new": "new", "old": "old", "mode": "canary"}),
    ("share", {"percent": 5.0}),
    ("swap", {"replica": "a", "release": "new"}),
    ("swapped", {"replica": "a", "release": "new", "read_s": 1.0}),
    ("request", {"deployment": 2, "action": "promote", "by": "operator"}),
    ("verdict", {"action": "promote", "reason": "faster", "by": "judge", "figures": {"ttft": 1}}),
    ("end", {"outcome": "promoted", "serving": "new", "behind": ["b"]}),
)


def entry(event: str, facts: dict[str, Any], n: int = 1) -> Entry:
    return Entry(n, 0.0, event, facts)


def test_a_state_kept_across_an_append_does_not_change(tmp_path) -> None:
    with Journal(tmp_path / "state" / "journal.jsonl", State()) as journal:
        states = [journal.read()]
        copies = copy.deepcopy(states)
        for event, facts in EVENTS:
            states.append(journal.append(event, **facts))
            copies.append(copy.deepcopy(states[-1]))
            assert journal.read() == states[-1] != states[-2], event
        assert states == copies
    begun = states[2].open
    decided = states[7].open
    assert (begun.goal, begun.swapped, begun.verdict) == ("old", (), DeploymentVerdict("wait", ""))
    assert (decided.goal, decided.swapped, decided.request.by) == ("new", ("a",), "operator")
    ended = states[-1]
    assert (ended.open, ended.serving, ended.previous) == (None, "new", "old")
    assert ended.last == dataclasses.replace(
        decided, outcome="promoted", ended_at=ended.last.ended_at, behind=("b",)
    )
    with pytest.raises(dataclasses.FrozenInstanceError):
        begun.verdict = decided.verdict
    with pytest.raises(dataclasses.FrozenInstanceError):
        ended.serving = "old"


def test_events_of_another_deployment_or_machine_change_nothing() -> None:
    state = State()
    states = []
    for event, facts in (
        ("window", {"window": 1, "rows": 5, "position": {}}),
        ("verdict", EVENTS[6][1]),
        ("request", EVENTS[5][1]),
        ("end", EVENTS[7][1]),
    ):
        states.append(state.add(entry(event, facts)))
    assert states == [state] * 4
    opened = state.add(entry("begin", EVENTS[1][1], n=3))
    assert opened.add(entry("request", EVENTS[5][1])) == opened, "of deployment 2"
    assert opened.add(entry("swap", {"replica": "a", "release": "old"})).open.swapped == ()


def test_a_second_baseline_leaves_the_deployment_open_and_its_goal_the_old_release() -> None:
    """As in the previous version, which has no second baseline and reads the same journal."""
    state = State().add(entry("begin", EVENTS[1][1], n=2))
    wait = {"action": "wait", "reason": "slower", "by": "judge", "figures": {}}
    for event, facts in (
        ("swap", EVENTS[3][1]),
        ("verdict", wait),
        ("swap", {"replica": "a", "release": "old"}),
        ("swap", EVENTS[3][1]),
    ):
        state = state.add(entry(event, facts))
    opened = state.open
    assert (opened.verdict.action, opened.verdict.reason) == ("wait", "slower")
    assert (opened.goal, opened.swapped) == ("old", ("a",))


@examples(300)
@given(st.data())
def test_any_journal_gives_a_state_or_names_its_line(tmp_path, data: st.DataObject) -> None:
    path = tmp_path / "journal.jsonl"
    lines = []
    for event, facts in EVENTS:
        line = {"at": 1.0, "event": event, **facts}
        lines.append(json.dumps(data.draw(st.just(line) | changed(line))))
    path.write_text("\n".join(lines) + "\n")
    state = State()
    try:
        for entry_read in read_journal(path):
            state = state_after(state, entry_read, path)
    except OutriderError as error:
        assert re.search(r"journal.jsonl: line \d", str(error))
