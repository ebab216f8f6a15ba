"""What lookups know of their matches at every anchor."""

import numpy as np
import pytest

from outrider.speculators.kinds.ngram import NGramLookup
from outrider.speculators.kinds.protocol import NO_DRAFT, Lookup
from outrider.speculators.kinds.suffix import SuffixLookup
from outrider.speculators.lookup_history import EarlierResponse


def literal_length(tokens, shortest, longest):
    """The longest n-gram at the end of the tokens that occurs earlier, too."""
    for size in range(longest, shortest - 1, -1):
        for start in range(len(tokens) - size):
            if tokens[start : start + size] == tokens[-size:]:
                return size
    return 0


@pytest.mark.parametrize(("shortest", "longest"), [(1, 4), (2, 4), (3, 3), (2, 8)])
def test_an_ngram_s_length_is_that_of_the_longest_earlier_occurrence(shortest, longest):
    random = np.random.default_rng(longest)
    for first, length in ((1, 2), (5, 40), (20, 60)):
        ids_T = random.integers(0, 4, length, dtype=np.int32)
        settings = {"prompt_lookup_min": shortest, "prompt_lookup_max": longest}
        matches = NGramLookup().all_matches(ids_T, first, 3, Lookup("ngram", settings))
        ends = range(first + 1, length)
        expected = [literal_length(ids_T[:end].tolist(), shortest, longest) for end in ends]
        assert matches.length_A.tolist() == expected
        # vLLM's proposer drafts wherever there is a match, and nowhere else.
        assert ((matches.drafts_AK[:, 0] != NO_DRAFT) == (matches.length_A > 0)).all()
        assert not matches.score_A.any()


def test_a_request_of_one_token_has_no_anchor():
    matches = NGramLookup().all_matches(np.array([7], np.int32), 1, 4, Lookup("ngram"))
    assert len(matches.drafts_AK) == len(matches.length_A) == 0


def test_suffix_lookup_has_matches_at_anchors_that_its_own_steps_skip(tmp_path):
    pytest.importorskip("arctic_inference", reason="suffix lookup needs arctic-inference")
    kind = SuffixLookup()
    random = np.random.default_rng(0)
    responses = [random.integers(0, 4, 40).tolist() for _ in range(5)]
    earlier = [EarlierResponse(np.array(response, np.int32)) for response in responses]
    directory = kind.prepare(earlier, tmp_path, max_gb=1.0, shared=True)
    lookup = Lookup("suffix", history=kind.history(directory))
    ids_T = random.integers(0, 4, 60, dtype=np.int32)
    matches = kind.all_matches(ids_T, 10, 8, lookup)
    (own_AK,) = kind.drafts(ids_T, 10, [8], lookup)
    visited = (own_AK != NO_DRAFT).any(axis=1)
    np.testing.assert_array_equal(matches.drafts_AK[visited], own_AK[visited])
    drafted = (matches.drafts_AK != NO_DRAFT).sum(axis=1)
    assert drafted.astype(bool).sum() > visited.sum() > 0
    assert ((drafted > 0) == (matches.length_A > 0)).all()
    # The score is a sum of shares of at most 1 for each draft.
    assert (matches.score_A <= drafted).all() and (matches.score_A[drafted > 0] > 0).all()
