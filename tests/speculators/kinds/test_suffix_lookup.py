"""Suffix lookup with vLLM's own cache, where its package is installed."""

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from outrider.common.errors import OutriderError
from outrider.serving.speculator import Speculator
from outrider.speculators.base import base_of
from outrider.speculators.kinds.protocol import NO_DRAFT, Lookup
from outrider.speculators.kinds.suffix import FACTOR, SuffixLookup, lookup_cache
from outrider.speculators.lookup_history import EarlierResponse, tenant_key


def prepared(responses, folder):
    """The directory of a shared history."""
    history = [EarlierResponse(np.array(ids, np.int32)) for ids in responses]
    return SuffixLookup().prepare(history, folder, max_gb=1.0, shared=True)


def test_suffix_lookup_continues_earlier_responses_and_the_request_itself(tmp_path: Path) -> None:
    pytest.importorskip("arctic_inference", reason="suffix lookup needs arctic-inference")
    kind = SuffixLookup()
    directory = prepared([[7, 8, 9, 10, 11, 12], [20, 21, 22]], tmp_path)
    history = kind.history(directory)
    assert history is not None and history.stat().st_mode & 0o077 == 0
    assert kind.vllm_settings(directory, 3, "greedy", None)["model"] == str(directory)
    lookup = Lookup("suffix", history=history)
    ids_T = np.array([1, 2, 3, 7, 8, 9, 5, 1, 2, 3, 6], np.int32)
    ((first_K, second_K, *others),) = kind.drafts(ids_T, 3, [3], lookup)
    assert len(others) == 5
    # The first step starts after 7, where a match of one token allows one draft, 8; the target
    # adds 9. The next starts after 7 8 9, whose three continuations are drafted.
    assert first_K.tolist() == [8, NO_DRAFT, NO_DRAFT] and (second_K == NO_DRAFT).all()
    assert others[0].tolist() == [10, 11, 12]
    # It starts after 5, the token that the target delivered instead; 1 was not seen after it.
    assert others[1].tolist() == [NO_DRAFT] * 3
    again_NAK = kind.drafts(ids_T, 3, [3], lookup)
    np.testing.assert_array_equal(again_NAK[0, 0], first_K)  # nothing was learned


def test_every_number_of_drafts_has_the_steps_that_it_has_alone(tmp_path: Path) -> None:
    pytest.importorskip("arctic_inference", reason="suffix lookup needs arctic-inference")
    kind = SuffixLookup()
    random = np.random.default_rng(0)
    responses = [random.integers(0, 4, 40).tolist() for _ in range(5)]
    history = kind.history(prepared(responses, tmp_path))
    ids_T = random.integers(0, 4, 60, dtype=np.int32)
    for factor in (1.0, 4.0):
        lookup = Lookup("suffix", {FACTOR: factor}, history)
        together_NAK = kind.drafts(ids_T, 10, [1, 2, 7, 24], lookup)
        for row, number in enumerate([1, 2, 7, 24]):
            (alone_AK,) = kind.drafts(ids_T, 10, [number], lookup)
            np.testing.assert_array_equal(together_NAK[row, :, :number], alone_AK)
            assert (together_NAK[row, :, number:] == NO_DRAFT).all()
    drafted = (together_NAK != NO_DRAFT).any(axis=2).sum(axis=1)
    assert drafted[0] > drafted[2] > 0  # fewer, longer steps


def test_a_request_never_finds_a_live_response_of_another(tmp_path: Path) -> None:
    """An attack: requests with the beginning of another's answer, while it runs and afterwards."""
    pytest.importorskip("arctic_inference", reason="suffix lookup needs arctic-inference")
    cache = lookup_cache()
    cache.load(prepared([[70, 71]], tmp_path) / "history.npz")
    settings = {"max_spec_tokens": 4, "max_spec_factor": 4.0, "min_token_prob": 0.1}
    secret = np.arange(1, 9, dtype=np.int32)
    cache.tenants["victim"] = tenant_key("acme")
    cache.start_request("victim", secret[:2])
    cache.add_active_response("victim", secret[2:])
    cache.tenants |= {"attacker": tenant_key("umbrella"), "same": tenant_key("acme")}
    for name in ("attacker", "same"):
        cache.start_request(name, secret[:1])
        cache.add_active_response(name, secret[1:4])
        assert cache.speculate(name, secret[:4], **settings).token_ids == []
    assert cache.speculate("victim", secret[:4], **settings).token_ids == secret[4:].tolist()
    cache.stop_request("victim")
    for name in ("attacker", "same"):
        assert cache.speculate(name, secret[:4], **settings).token_ids == []
    assert cache.speculate("same", np.array([0, 70], np.int32), **settings).token_ids == [71]


def test_vllms_proposer_is_changed_once(monkeypatch):
    from vllm.v1.core.sched.output import NewRequestData
    from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer

    original = NewRequestData.from_request
    for name in ("__init__", "propose"):  # restored at the end
        monkeypatch.setattr(SuffixDecodingProposer, name, getattr(SuffixDecodingProposer, name))
    monkeypatch.setattr(NewRequestData, "from_request", original)
    SuffixLookup().hook_engine()
    changed = (SuffixDecodingProposer.__init__, NewRequestData.from_request)
    SuffixLookup().hook_engine()
    assert (SuffixDecodingProposer.__init__, NewRequestData.from_request) == changed


def test_no_engine_starts_with_tokens_that_its_target_does_not_have(monkeypatch, tmp_path) -> None:
    """It would end at the first such draft, for all its requests."""
    pytest.importorskip("arctic_inference", reason="suffix lookup needs arctic-inference")
    from vllm.v1.core.sched.output import NewRequestData
    from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer

    monkeypatch.setattr(SuffixDecodingProposer, "__init__", lambda proposer, config: None)
    for holder, name in ((SuffixDecodingProposer, "propose"), (NewRequestData, "from_request")):
        monkeypatch.setattr(holder, name, getattr(holder, name))  # restored at the end
    monkeypatch.setattr("outrider.speculators.kinds.suffix._hook_runner", lambda: None)
    SuffixLookup().hook_engine()
    directory = prepared([[7, 8, 4095]], tmp_path)
    config = SimpleNamespace(
        speculative_config=SimpleNamespace(model=str(directory)),
        model_config=SimpleNamespace(get_vocab_size=lambda: 4096),
    )
    SuffixDecodingProposer(config)
    prepared([[7, 8, 4096]], tmp_path)
    with pytest.raises(OutriderError, match=r"token 4096, but the target's vocabulary has 4096"):
        SuffixDecodingProposer(config)


def test_without_its_package_suffix_lookup_names_the_command(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "arctic_inference.suffix_decoding", None)
    with pytest.raises(OutriderError, match="outrider doctor --install-suffix"):
        base_of("suffix", tmp_path)


def test_a_response_that_ends_on_accepted_drafts_has_as_many_steps_as_drafted():
    long = {"generation_tokens": 85, "accepted_tokens": 57, "drafts": 28}
    rarely = {"generation_tokens": 85, "accepted_tokens": 10, "drafts": 5}
    assert Speculator("suffix").steps(long, 1) == 28  # 85 - 1 - 57 = 27: one was not delivered
    assert Speculator("ngram").steps(rarely, 1) == 74


def test_a_history_that_is_written_again_is_what_replay_searches(tmp_path: Path) -> None:
    pytest.importorskip("arctic_inference", reason="suffix lookup needs arctic-inference")
    kind = SuffixLookup()
    ids_T = np.array([1, 7, 8, 3], np.int32)
    for followed_by in (40, 41):
        earlier = [EarlierResponse(np.array([7, 8, followed_by], np.int32))]
        directory = kind.prepare(earlier, tmp_path, max_gb=1.0, shared=True)
        lookup = Lookup("suffix", history=kind.history(directory))
        matches = kind.all_matches(ids_T, 1, 1, lookup)
        assert matches.drafts_AK[1].tolist() == [followed_by]
