"""The shown steps against the engine's rule taken literally, and the page that shows them."""

from types import SimpleNamespace

import pytest
import torch
from tokenizers import Tokenizer

from outrider.eval.replay.example_traces import (
    SHOWN_STEPS,
    choose,
    pieces,
    sample_responses,
    step_texts,
    walk,
    walks,
)
from outrider.eval.replay.replay import replay
from outrider.eval.report.report import write_report
from tests.eval.replay_case import DEPTH, replay_case, states_of
from tests.eval.sample_results import sample_examples, sample_replay, sample_results

SECRET = "<b>Kanarienvogel</b>"


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return replay_case(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def tokenizer(nano_r1):
    return Tokenizer.from_file(str(nano_r1 / "tokenizer.json"))


def test_a_walk_is_the_engines_rule_token_by_token():
    response = [5, 6, 7, 8, 9, 10, 11]
    drafts = {0: [6, 7, 1], 3: [9, 10, 11], 1: None}
    steps = walk(response, lambda anchor: drafts[anchor])
    # Two of three drafts are accepted; then all three, and the response ends before the
    # target's own token.
    assert [(step.start, step.accepted, step.delivered) for step in steps] == [(1, 2, 3), (4, 3, 3)]
    assert walk([5], lambda anchor: pytest.fail("nothing to draft")) == []


def test_walks_are_the_speculators_own_drafts_and_replays_steps(case):
    names = [f"r{number}" for number in range(5)]
    taken = walks(case.target, case.target, case.store, names, DEPTH)
    sums = replay(case.target, case.target, case.store, case.rows, DEPTH)
    assert [len(steps) for steps in taken] == pytest.approx(sums.steps_RK[:, DEPTH - 1])
    accepted = 0
    for name, steps in zip(names, taken, strict=True):
        features = case.store[name]
        tokens, start = features.token_ids.long(), features.completion_start
        states = states_of(case.speculator, case.ends, tokens, features.hidden.float())
        position = start  # of the last known token
        for step in steps:
            assert step.start == position + 1 - start
            right = 0
            for j in range(1, DEPTH + 1):
                if position + j >= len(tokens):
                    break
                draft = int(case.ends.logits(states[j - 1][0, position - 1]).argmax())
                assert step.drafts[j - 1] == draft
                if draft != tokens[position + j]:
                    break
                right += 1
            assert step.accepted == right
            accepted += right
            position += step.delivered
        assert position == len(tokens) - 1
    assert accepted == pytest.approx(sums.accepted_RKK[:, DEPTH - 1].sum()) and accepted > 5


def test_the_text_of_a_step_is_told_apart_by_who_wrote_it():
    drafts = {0: [1, 9], 2: [3, 4], 5: [6, 9]}
    steps = walk(list(range(7)), lambda anchor: drafts[anchor])
    # A wrong draft, two right ones, and the end of the response after a right one.
    shown = step_texts(list("abcdefg"), steps)
    assert shown == [("", "a"), ("b", "c"), ("de", "f"), ("g", "")]


def test_a_character_of_several_tokens_stands_at_its_last(tokenizer):
    text = "Grüße 🙂 日本"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    texts = pieces(tokenizer, ids)
    assert len(texts) == len(ids) > len(text) and "".join(texts) == text and "🙂" in texts
    assert "\ufffd" in pieces(tokenizer, ids[:-1])[-1]  # cut bytes are shown as such


def test_the_examples_are_where_custom_gains_least_usually_and_most():
    base, custom = sample_replay(0.6), sample_replay(0.8)
    custom.steps_RK[:, 2] = base.steps_RK[:, 2] / torch.linspace(1, 3, 120).numpy()
    assert choose(base, custom, 3) == {
        "gains least": "12",
        "gains as usual": "60",
        "gains most": "108",
    }


def test_examples_say_what_replay_says_of_their_responses(case, tmp_path, nano_r1):
    target = tmp_path / "target"
    target.mkdir()
    for path in (*case.target.iterdir(), nano_r1 / "tokenizer.json"):
        (target / path.name).symlink_to(path)
    long = case.store["r0"]
    repeats = -(-SHOWN_STEPS * (DEPTH + 1) // len(long.token_ids))
    store = {
        **case.store,
        "r0": SimpleNamespace(
            token_ids=long.token_ids.repeat(repeats),
            hidden=long.hidden.repeat(repeats, 1),
            completion_start=3,
        ),
    }
    reader = SimpleNamespace(read=store.__getitem__)
    sums = replay(case.target, case.target, reader, case.rows, DEPTH)
    speculators = {"base": case.target, "custom": case.target}
    found = sample_responses(sums, sums, 2, speculators, target, reader)
    chosen = choose(sums, sums, 2)
    assert [example["place"] for example in found["examples"]] == list(chosen)
    assert "r0" in chosen.values()
    for example, name in zip(found["examples"], chosen.values(), strict=True):
        row = sums.sequence_ids.index(name)
        walked = example["base"]
        assert walked == example["custom"]
        assert walked["steps"] == pytest.approx(sums.steps_RK[row, 1])
        assert example["tokens"] == sums.tokens_R[row]
        assert len(walked["shown"]) == 1 + min(walked["steps"], SHOWN_STEPS)


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """Reports with and without examples."""
    written = {}
    for shown in (False, True):
        run = tmp_path_factory.mktemp("samples")
        samples = sample_examples(SECRET) if shown else None
        results = sample_results().model_copy(update={"samples": samples})
        results.write(run / "evaluation" / "results.json")
        write_report(run, run / "evaluation", run)
        written[shown] = run
    return written


def test_the_page_shows_them_escaped_and_only_where_they_are(pages):
    page, plain = ((pages[shown] / "report.html").read_text() for shown in (True, False))
    assert "Kanarienvogel" not in plain and "Step by step" not in plain
    assert "&lt;b&gt;Kanarienvogel&lt;/b&gt;" in page and SECRET not in page
    assert "acceptance length 3.50" in page
    markdown = (pages[True] / "report.md").read_text()
    assert "Kanarienvogel" in markdown and "## Step by step" in markdown
    assert "Step by step" not in (pages[False] / "report.md").read_text()


def test_a_report_with_customer_text_is_its_owners_alone(pages):
    for name in ("report.html", "report.md", "report.json"):
        assert (pages[True] / name).stat().st_mode & 0o077 == 0
