"""The suffix array drafts what counting in all responses says."""

import itertools
from collections import Counter

import numpy as np
import pytest

from outrider.speculators.kinds.suffix_search import SuffixArray
from outrider.speculators.suffix_array import DEPTH, END, suffix_array


def by_counting(responses, recent, k, factor, least):
    """The best drafts and score of all lengths of a match, by counting continuations."""
    best = ([], 0.0, 0)
    for length in range(1, len(recent)):
        text = recent[-length:]
        drafts, score, probability = [], 0.0, 1.0
        if not continuations(responses, text).total():
            break
        while len(drafts) < min(k, int(length * factor + 1e-6), DEPTH - length):
            counts = continuations(responses, text + drafts)
            matches = counts.total()
            del counts[END]
            if not counts:
                break
            token = min(counts, key=lambda token: (-counts[token], token))
            probability *= counts[token] / matches
            if probability < least:
                break
            drafts.append(token)
            score += probability
        if score >= best[1]:
            best = (drafts, score, length)
    return best


def continuations(responses, text):
    """Counts of the tokens after `text`, END after the last of a response."""
    counts = Counter()
    for response in responses:
        ended = [*response, END]
        for start in range(len(response) - len(text) + 1):
            if response[start : start + len(text)] == text:
                counts[ended[start + len(text)]] += 1
    return counts


def array_of(responses):
    tokens_N = np.array([*itertools.chain.from_iterable([*r, END] for r in responses)], np.int32)
    padded_N = np.concatenate([tokens_N, np.full(DEPTH, END, np.int32)])
    return SuffixArray(padded_N, suffix_array(tokens_N)), int((tokens_N != END).sum())


@pytest.mark.parametrize("vocabulary", [2, 5, 40])
def test_drafts_are_the_most_frequent_continuations(vocabulary):
    random = np.random.default_rng(vocabulary)
    responses = [
        random.integers(0, vocabulary, size).tolist() for size in random.integers(1, 60, 25)
    ]
    responses[3:3] = [responses[0], responses[0][5:]]  # long matches
    array, rows = array_of(responses)
    drafted = 0
    for _ in range(60):
        response = responses[random.integers(len(responses))]
        recent = response[: random.integers(1, len(response) + 1)][-DEPTH:]
        factor, least = random.choice([1.0, 2.0, 4.0]), random.choice([0.05, 0.1, 0.3])
        k = int(random.integers(1, 25))
        drafts, score, length = array.drafts(
            np.array(recent, np.int32), first=0, last=rows, k=k, factor=factor, least=least
        )
        expected, best, longest = by_counting(responses, recent, k, factor, least)
        assert score == pytest.approx(best, rel=1e-5)
        assert drafts.tolist() == expected
        assert length == longest or not expected
        drafted += len(drafts)
    assert drafted > 60


def test_the_rows_are_sorted_by_the_tokens_that_follow():
    random = np.random.default_rng(0)
    tokens_N = random.integers(0, 3, 500, dtype=np.int32)
    tokens_N[::50] = END
    rows = suffix_array(tokens_N)
    texts = [tokens_N[row : row + DEPTH].tolist() for row in rows]
    assert texts == sorted(texts)
    assert sorted(rows) == np.flatnonzero(tokens_N != END).tolist()


def test_drafts_and_scores_are_those_of_the_tree_that_vllm_searches():
    """Except where two tokens are equally frequent: then the score is the same."""
    decoding = pytest.importorskip("arctic_inference.suffix_decoding")
    random = np.random.default_rng(1)
    phrases = [random.integers(0, 300, size).tolist() for size in random.integers(5, 30, 40)]
    responses = [
        [*itertools.chain.from_iterable(phrases[n] for n in random.integers(0, 40, 6))]
        for _ in range(50)
    ]
    array, rows = array_of(responses)
    tree = decoding.SuffixDecodingCache(DEPTH, -1)
    for number, response in enumerate(responses):
        tree.start_request(number, [])
        tree.add_active_response(number, response)
        tree.stop_request(number)
    same = 0
    tree._max_cached_requests = 0
    tree.start_request("request", [])
    for _ in range(300):
        response = responses[random.integers(50)]
        end = random.integers(DEPTH, len(response)) if len(response) > DEPTH else len(response)
        recent = response[:end][-DEPTH:]
        drafts, score, length = array.drafts(
            np.array(recent, np.int32), first=0, last=rows, k=8, factor=2.0, least=0.1
        )
        expected = tree.speculate(
            "request", recent, max_spec_tokens=8, max_spec_factor=2.0, min_token_prob=0.1
        )
        assert score == pytest.approx(expected.score, rel=1e-5)
        assert length == expected.match_len or not expected.token_ids
        same += drafts.tolist() == expected.token_ids
    assert same > 250
