"""N-gram lookup against a literal search and vLLM's own code, of both model runners."""

import json
import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from outrider.speculators.kinds.ngram import (
    LONGEST,
    SHORTEST,
    NGramLookup,
    first_occurrence_drafts,
    last_occurrence_drafts,
)
from outrider.speculators.kinds.protocol import NO_DRAFT, Lookup, Runner
from tests.fuzzing import examples
from tests.shipped_traffic import token_ids, with_token_ids
from tests.speculators.kinds.ngram_in_vllm import V1GPULookup, V1Lookup, walked_steps

MOST = 512
TEXTS = st.lists(st.integers(0, 5).map(lambda token: 7 * token), min_size=1, max_size=80)
LENGTHS = st.tuples(st.integers(1, 4), st.integers(0, 4)).map(lambda n: range(n[0], sum(n) + 1))
DRAFTS = st.integers(1, 24)


def literal_drafts(context: list[int], k: int, lengths: range, runner: str) -> list[int]:
    """What a runner drafts after `context`, by the words of its documentation."""
    for n in reversed(lengths):
        suffix = context[len(context) - n :] if n <= len(context) else None
        starts = [s for s in range(len(context) - n) if context[s : s + n] == suffix]
        if starts:
            start = starts[0] if runner == "v1" else starts[-1]
            drafts = context[start + n : start + n + k]
            break
    else:
        drafts = []
    if runner == "v2":
        drafts = drafts + [context[-1]] * (k - len(drafts))
    return drafts


def logged_texts() -> list[list[int]]:
    """Some exchanges as logged."""
    exchanges = map(token_ids, islice(with_token_ids("social_chat"), 3))
    return [prompt + completion for prompt, completion in exchanges]


def contexts_of(text: list[int], first: int) -> list[list[int]]:
    """The context of each anchor."""
    return [text[: anchor + 1] for anchor in range(first, len(text) - 1)]


def rows_of(drafts: list[list[int]], k: int) -> NDArray[np.int32]:
    """Drafts as rows of k, with NO_DRAFT for those that are missing."""
    filled = [row + [NO_DRAFT] * (k - len(row)) for row in drafts]
    return np.array(filled, np.int32).reshape(-1, k)


@examples(200)
@given(text=TEXTS, lengths=LENGTHS, k=DRAFTS, first=st.integers(0, 20))
def test_drafts_are_those_of_a_literal_search(
    text: list[int], lengths: range, k: int, first: int
) -> None:
    contexts = contexts_of(text, first)
    for runner, drafts in (("v1", first_occurrence_drafts), ("v2", last_occurrence_drafts)):
        expected = [literal_drafts(context, k, lengths, runner) for context in contexts]
        drafts_AK = drafts(np.array(text, np.int32), first, k, lengths)
        assert drafts_AK.dtype == np.int32
        np.testing.assert_array_equal(drafts_AK, rows_of(expected, k), err_msg=runner)


@examples(100)
@given(text=TEXTS, lengths=LENGTHS, k=DRAFTS)
def test_drafts_of_v1_are_those_of_vllms_kernel_for_gpus(
    text: list[int], lengths: range, k: int
) -> None:
    contexts = contexts_of(text, 0)
    drafts_AK = first_occurrence_drafts(np.array(text, np.int32), 0, k, lengths)
    if contexts:
        expected = V1GPULookup(k, lengths, MOST)(contexts)
        np.testing.assert_array_equal(drafts_AK, rows_of(expected, k))


@pytest.mark.parametrize("lengths", [range(1, 2), range(2, 5), range(1, 7)])
@pytest.mark.parametrize("k", [1, 3, 24])
def test_drafts_of_v1_are_those_of_vllms_proposer(k: int, lengths: range) -> None:
    """Random texts over few tokens, and responses as logged."""
    rng = np.random.default_rng(k)
    texts = [rng.integers(0, tokens, 60).tolist() for tokens in (1, 2, 3, 5, 9)]
    texts += logged_texts()
    propose = V1Lookup(k, lengths, MOST)
    for text in texts:
        drafts_AK = first_occurrence_drafts(np.array(text, np.int32), 0, k, lengths)
        expected = propose(contexts_of(text, 0))
        np.testing.assert_array_equal(drafts_AK, rows_of(expected, k))


def test_a_walk_accepts_what_equals_the_response() -> None:
    text = [1, 2, 3, 4, 9, 1, 2, 3, 4, 5]
    propose = V1Lookup(3, range(2, 5), MOST)
    # The prefill delivers 9. Without a match, steps deliver 1 and 2; then 3 and 4 are accepted.
    assert walked_steps([(text, 4)], propose) == [3]
    assert walked_steps([(text, 4), (text, 8), (text, 9)], propose) == [3, 1, 0]


@pytest.mark.slow
def test_drafts_of_v2_are_those_of_vllms_kernels(tmp_path: Path) -> None:
    """The kernels run in Triton's interpreter, in a process of their own: 30 ms a context."""
    rng = np.random.default_rng(0)
    cases = []
    for k, shortest, longest in ((1, 1, 1), (3, 2, 4), (8, 1, 4), (24, 3, 7)):
        lengths = rng.integers(1, 300, 40)
        contexts = [rng.integers(0, rng.integers(1, 9), length).tolist() for length in lengths]
        cases.append([contexts, k, shortest, longest])
    answers = logged_texts()
    cases += [[contexts_of(text, len(text) - 20), 4, 2, 4] for text in answers]
    file = tmp_path / "cases.json"
    file.write_text(json.dumps(cases))
    modules = "tests.serving.vllm_hooks.v2_on_cpu", "tests.speculators.kinds.ngram_in_vllm"
    words = [sys.executable, "-m", *modules, str(file), str(tmp_path / "drafts.json")]
    subprocess.run(words, check=True, env=os.environ | {"VLLM_LOGGING_LEVEL": "ERROR"})
    of_case = json.loads((tmp_path / "drafts.json").read_text())
    matched = 0
    for (contexts, k, shortest, longest), drafts in zip(cases, of_case, strict=True):
        for context, row in zip(contexts, drafts, strict=True):
            lengths = range(shortest, longest + 1)
            assert row == literal_drafts(context, k, lengths, "v2")
            # The last anchor of a text is its second-to-last token.
            text = np.array([*context, 0], np.int32)
            drafts_AK = last_occurrence_drafts(text, len(context) - 1, k, lengths)
            assert drafts_AK.tolist() == [row]
            matched += row != [context[-1]] * k
    assert matched > 100


def test_replay_follows_the_runner_and_the_settings_of_the_lookup() -> None:
    text = np.array([5, 6, 7, 1, 1, 9, 8, 5, 6, 7, 2, 2, 3, 5, 6, 7, 0], np.int32)
    drafts = {}
    for runner in get_args(Runner):
        drafts_NAK = NGramLookup().drafts(text, 15, [1, 3], Lookup("ngram", runner=runner))
        assert drafts_NAK.shape == (2, 1, 3)
        drafts[runner] = drafts_NAK[1, 0].tolist()
    assert drafts == {"v1": [1, 1, 9], "v2": [2, 2, 3]}
    long = {SHORTEST: 4, LONGEST: 5}
    unmatched = {
        runner: NGramLookup().drafts(text, 15, [2], Lookup("ngram", long, runner=runner)).tolist()
        for runner in get_args(Runner)
    }
    assert unmatched == {"v1": [[[NO_DRAFT, NO_DRAFT]]], "v2": [[[7, 7]]]}
