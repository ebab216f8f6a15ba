"""The shown steps against the engine's rule taken literally, and the page that shows them."""

import pytest

from outrider.eval.replay.example_traces import sample_responses, walk, walks
from tests.eval.replay_case import DEPTH, replay_case, replayed, states_of


@pytest.fixture(scope="module")
def case(tmp_path_factory, nano_r1):
    case = replay_case(tmp_path_factory.mktemp("tiny"))
    (case.target / "tokenizer.json").symlink_to(nano_r1 / "tokenizer.json")
    return case


def test_a_walk_is_the_engines_rule_token_by_token():
    response = [5, 6, 7, 8, 9, 10, 11]
    drafts = {0: [6, 7, 1], 3: [9, 10, 11], 1: None}
    # Two of three drafts are accepted; then all three, and the response ends before the
    # target's own token.
    assert walk(response, lambda anchor: drafts[anchor]) == [(2, 3), (3, 3)]
    assert walk([5], lambda anchor: pytest.fail("nothing to draft")) == []


def test_walks_are_the_speculators_own_drafts_and_replays_steps(case):
    names = [f"r{number}" for number in range(5)]
    taken = walks(
        speculator_dir=case.target,
        target_dir=case.target,
        store=case.store,
        sequence_ids=names,
        k=DEPTH,
    )
    sums = replayed(case)
    assert [len(steps) for steps in taken] == pytest.approx(sums.steps_RK[:, DEPTH - 1])
    total = 0
    for name, steps in zip(names, taken, strict=True):
        features = case.store[name]
        tokens = features.token_ids.long()
        position = features.completion_start
        states = states_of(case.speculator, case.ends, tokens, features.hidden.float())
        for accepted, delivered in steps:
            drafts = [int(case.ends.logits(u[0, position - 1]).argmax()) for u in states]
            logged = tokens[position + 1 : position + 1 + DEPTH].tolist()
            equal = [draft == token for draft, token in zip(drafts, logged, strict=False)]
            assert accepted == (equal.index(False) if False in equal else len(equal))
            total += accepted
            position += delivered
        assert position == len(tokens) - 1
    assert total == pytest.approx(sums.accepted_RKK[:, DEPTH - 1].sum()) and total > 5


def test_examples_are_where_custom_gains_least_usually_and_most(case):
    sums = replayed(case)
    base = sums.select(sums.sequence_ids)
    base.steps_RK[:, 1] *= [1, 5, 2, 4, 3]
    speculators = {"base": case.target, "custom": case.target}
    found = sample_responses(
        base=base,
        custom=sums,
        k=2,
        speculators=speculators,
        target_dir=case.target,
        store=case.store,
    )
    names = ("r0", "r4", "r1")
    assert [each["place"] for each in found] == [
        "gains least",
        "gains a typical amount",
        "gains most",
    ]
    for example, name in zip(found, names, strict=True):
        row = sums.sequence_ids.index(name)
        walked = example["base"]
        assert walked == example["custom"] and example["tokens"] == sums.tokens_R[row]
        assert walked["steps"] == pytest.approx(sums.steps_RK[row, 1])
        assert len(walked["shown"]) == 1 + walked["steps"]
