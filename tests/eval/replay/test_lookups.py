"""Replay of lookups against a walk token by token, and the choice of settings."""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from outrider.common.errors import OutriderError
from outrider.eval.replay.heldout_replay import replay_figures
from outrider.eval.replay.lookups import NUMBERS, LoggedText, best_settings, lookup_sums
from outrider.eval.replay.regions import NAMES, Regions
from outrider.eval.replay.sums import compare_replays
from outrider.eval.results.parts import Drafters
from outrider.eval.results.sections import KChoice
from outrider.speculators.acceptance import pad_anchors, replay_chain
from outrider.speculators.kinds import KINDS
from outrider.speculators.kinds.ngram import LONGEST, SHORTEST, NGramLookup
from outrider.speculators.kinds.protocol import MOST_LOOKED_UP, NO_DRAFT, Lookup, WeightlessKind
from tests.eval.sample_results import sample_findings, sample_replay


def repetitive(seed: int, count: int, length: int = 60, vocabulary: int = 6) -> list[LoggedText]:
    """Random texts over few tokens, so that n-grams repeat."""
    random = np.random.default_rng(seed)
    return [
        LoggedText(
            sequence_id=f"q{row}",
            session=f"s{row // 2}",
            user="",
            token_ids_T=random.integers(0, vocabulary, length + row, dtype=np.int32),
            completion_start=int(random.integers(1, 20)),
        )
        for row in range(count)
    ]


def proposed(context: Sequence[int], k: int, shortest: int, longest: int) -> list[int]:
    """What follows the first occurrence of the longest n-gram that ends the context."""
    for length in range(min(longest, len(context) - 1), shortest - 1, -1):
        suffix = context[len(context) - length :]
        for start in range(len(context) - length):
            if context[start : start + length] == suffix:
                return list(context[start + length : start + length + k])
    return []


def served(text: LoggedText, k: int, shortest: int, longest: int) -> tuple[list[int], list[int]]:
    """Accepted drafts and the start of each step of an engine that delivers the text."""
    ids = text.token_ids_T.tolist()
    position = text.completion_start + 1
    accepted = []
    starts = []
    while position < len(ids):
        count = 0
        starts.append(position - 1 - text.completion_start)
        drafts = proposed(ids[:position], k, shortest, longest)
        # The engine may accept a draft past the end, but nothing logged shows it.
        for draft, logged in zip(drafts, ids[position:], strict=False):
            if draft != logged:
                break
            count += 1
        accepted.append(count)
        position += count + 1
    return accepted, starts


@pytest.mark.parametrize("lengths", [(1, 3), (2, 4), (3, 8)])
def test_steps_and_accepted_drafts_are_those_of_a_walk_token_by_token(
    lengths: tuple[int, int],
) -> None:
    texts = repetitive(seed=3, count=6)
    lookup = Lookup("ngram", {SHORTEST: lengths[0], LONGEST: lengths[1]})
    sums = lookup_sums(lookup, texts, Regions(None, None))
    for row, text in enumerate(texts):
        assert sums.tokens_R[row] == len(text.token_ids_T) - text.completion_start - 1
        for k in (1, 2, 5, MOST_LOOKED_UP):
            accepted, starts = served(text, k, *lengths)
            assert sums.steps_RK[row, k - 1] == len(starts)
            by_position = [sum(count >= j for count in accepted) for j in range(1, k + 1)]
            assert sums.accepted_RKK[row, k - 1, :k].tolist() == by_position
            assert not sums.accepted_RKK[row, k - 1, k:].any()
            early = sum(start + 1 < 128 for start in starts)
            in_region = NAMES.index(("position in response", "up to 128 tokens"))
            assert sums.region_steps_RGK[row, in_region, k - 1] == early
    assert sums.users == [""] * 6 and sums.sessions == ["s0", "s0", "s1", "s1", "s2", "s2"]


def test_the_walk_equals_the_chain_of_replay_from_states() -> None:
    """For a lookup whose drafts do not depend on K, both are the same renewal equation."""
    texts = repetitive(seed=5, count=4)
    sums = lookup_sums(Lookup("ngram"), texts)
    rows = []
    for text in texts:
        drafts_NAK = NGramLookup().drafts(
            text.token_ids_T, text.completion_start, NUMBERS, Lookup("ngram")
        )
        padded_T = np.concatenate([text.token_ids_T, np.full(MOST_LOOKED_UP, -2, np.int32)])
        logged_AK = [
            padded_T[text.completion_start + 1 + anchor :][:MOST_LOOKED_UP]
            for anchor in range(text.anchors)
        ]
        rows.append(torch.tensor(drafts_NAK[0] == np.stack(logged_AK)).double())
    anchors_R = torch.tensor([text.anchors for text in texts])
    chain = replay_chain(pad_anchors(torch.cat(rows), anchors_R), anchors_R)
    np.testing.assert_array_equal(sums.steps_RK, chain.steps_RK.numpy())
    np.testing.assert_array_equal(sums.accepted_RKK, chain.accepted_RKK.numpy())


class Fixed(WeightlessKind):
    """Always drafts as many tokens of a fixed run as its only setting tells."""

    name = "fixed"
    searched_settings: ClassVar = ({"drafts": 1.0}, {"drafts": 2.0}, {"drafts": 3.0})

    def drafts(
        self, token_ids_T: NDArray[np.int32], first: int, numbers: Sequence[int], lookup: Lookup
    ) -> NDArray[np.int32]:
        anchors = max(len(token_ids_T) - 1 - first, 0)
        drafts_NAK = np.full((len(numbers), anchors, max(numbers)), NO_DRAFT, np.int32)
        for row, number in enumerate(numbers):
            drafts_NAK[row, :, : min(number, int(lookup.settings["drafts"]))] = 7
        return drafts_NAK


def sevens(length: int) -> LoggedText:
    """A prompt of one token and a response of sevens."""
    return LoggedText("q", "s", "", np.array([1, *[7] * length], np.int32), 1)


def test_the_settings_with_the_longest_acceptance_win_and_of_equals_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(KINDS, "fixed", Fixed())
    # 12 steps may deliver 36 tokens with two drafts, 9 steps with three.
    assert best_settings(Lookup("fixed"), [sevens(37)]) == {"drafts": 3.0}
    # A response of two tokens has one step, whatever is drafted.
    assert best_settings(Lookup("fixed"), [sevens(2)]) == {"drafts": 1.0}
    assert best_settings(Lookup("fixed"), [sevens(1)]) == {}
    assert best_settings(Lookup("none"), [sevens(37)]) == {}
    sums = lookup_sums(Lookup("fixed", {"drafts": 2.0}), [sevens(37)])
    assert sums.steps_RK[0, :3].tolist() == [18, 12, 12]


def test_responses_without_a_step_are_left_out_and_none_at_all_is_an_error() -> None:
    without_prompt = dataclasses.replace(sevens(5), completion_start=0)
    sums = lookup_sums(Lookup("none"), [sevens(1), sevens(3), without_prompt])
    assert sums.tokens_R.tolist() == [2] and sums.acceptance_length() == [1.0] * MOST_LOOKED_UP
    with pytest.raises(OutriderError, match="no sequence has a response of two tokens"):
        lookup_sums(Lookup("none"), [sevens(1)])


def test_a_lookup_is_compared_at_the_largest_k_of_both() -> None:
    """Its own figures have its own K; the report needs both."""
    replays = {"base": sample_replay(0.5), "custom": sample_replay(0.7, depth=24)}
    replays["ceiling"] = sample_replay(0.9)
    choice = KChoice(k=Drafters[int](base=2, custom=24), main_concurrency=1)
    figures = replay_figures(replays, choice)
    assert (
        figures.k == 4
        and figures.ratio == compare_replays(replays["base"], replays["custom"], 4)["ratio"]
    )
    lengths = {name: len(shares) for name, shares in figures.cumulative.items()}
    assert lengths == {"base": 2, "custom": 24, "ceiling": 4}
    assert len(figures.cumulative_ci95) == 24
    findings = sample_findings().model_copy(update={"choice": choice, "replay": figures})
    assert findings.at_k == "both at K = 4"
