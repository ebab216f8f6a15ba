"""Suffix lookup with vLLM's own cache, where its package is installed."""

import sys
from pathlib import Path

import numpy as np
import pytest

from outrider.common.errors import OutriderError
from outrider.serving.speculator import Speculator
from outrider.speculators.base import base_of
from outrider.speculators.kinds.protocol import NO_DRAFT
from outrider.speculators.kinds.suffix import HISTORY, SuffixLookup, fixed_cache


def test_suffix_lookup_continues_earlier_responses_and_the_request_itself(tmp_path, monkeypatch):
    pytest.importorskip("arctic_inference", reason="suffix lookup needs arctic-inference")
    environment = SuffixLookup().prepare([[7, 8, 9, 10, 11, 12], [20, 21, 22]], tmp_path)
    ((variable, history),) = environment.items()
    assert Path(history).stat().st_mode & 0o077 == 0
    monkeypatch.setenv(variable, history)
    ids_T = np.array([1, 2, 3, 7, 8, 9, 5, 1, 2, 3, 6], np.int32)
    drafts_AK = SuffixLookup().drafts(ids_T, 3, 3)
    assert drafts_AK.shape == (7, 3)
    assert drafts_AK[1].tolist() == [9, 10, NO_DRAFT]  # after 7 8: as many as match
    assert drafts_AK[2].tolist() == [10, 11, 12]  # after 7 8 9
    assert drafts_AK[3].tolist() == [NO_DRAFT] * 3
    assert drafts_AK[5].tolist() == [3, 7, NO_DRAFT]  # after 1 2, in the prompt
    np.testing.assert_array_equal(SuffixLookup().drafts(ids_T, 3, 3), drafts_AK)  # nothing learned


def test_vllms_proposer_is_changed_once_and_only_where_responses_are_fixed(monkeypatch):
    from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer

    start = SuffixDecodingProposer.__init__
    for name in ("__init__", "propose"):  # restored at the end
        monkeypatch.setattr(SuffixDecodingProposer, name, getattr(SuffixDecodingProposer, name))
    monkeypatch.delenv(HISTORY, raising=False)
    SuffixLookup().hook_engine()
    assert SuffixDecodingProposer.__init__ is start
    monkeypatch.setenv(HISTORY, "history.npz")
    SuffixLookup().hook_engine()
    changed = SuffixDecodingProposer.__init__
    assert changed is not start
    SuffixLookup().hook_engine()
    assert SuffixDecodingProposer.__init__ is changed


def test_without_its_package_suffix_lookup_names_the_command(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "arctic_inference.suffix_decoding", None)
    fixed_cache.cache_clear()
    with pytest.raises(OutriderError, match="outrider doctor --install-suffix"):
        base_of("suffix", tmp_path)


def test_a_response_that_ends_on_accepted_drafts_has_as_many_steps_as_drafted():
    long = {"generation_tokens": 85, "accepted_tokens": 57, "drafts": 28}
    rarely = {"generation_tokens": 85, "accepted_tokens": 10, "drafts": 5}
    assert Speculator("suffix").steps(long, 1) == 28  # 85 - 1 - 57 = 27: one was not delivered
    assert Speculator("ngram").steps(rarely, 1) == 74
