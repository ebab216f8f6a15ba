"""A head and a lookup together, against enumerated walks and hand-computed tables."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.eval.replay.both_together import (
    LENGTHS,
    PROBABILITIES,
    SCORES,
    Anchors,
    LookupRule,
    StepTime,
    anchors_of,
    combine_drafters,
    fewest_steps,
    fit_rule,
    mean_accepted_by_bin,
)
from outrider.eval.replay.lookups import LoggedText, lookup_sums
from outrider.eval.replay.replay import replay
from outrider.eval.replay.sums import ReplaySums
from outrider.speculators.acceptance import pad_anchors, replay_chain
from outrider.speculators.kinds import kind_named
from outrider.speculators.kinds.protocol import Lookup
from outrider.speculators.lookup_history import EarlierResponse
from tests.eval.replay_case import replay_case, states_of

MOST = 4
K = 3
TIME = StepTime(head_ms=1.3, lookup_ms=0.9, pass_ms=0.1)


def rule(handicap, head=0.0, lookup=0.0):
    """A rule whose tables hold one value each."""
    shape = (len(SCORES) + 1, len(LENGTHS) + 1)
    return LookupRule(np.full(len(PROBABILITIES) + 1, head), np.full(shape, lookup), handicap)


ALWAYS_HEAD, ALWAYS_LOOKUP = rule(math.inf), rule(-math.inf)


@st.composite
def anchors(draw, most=12):
    """Up to three responses with any acceptance; drafts past the end are rejected."""
    counts = draw(st.lists(st.integers(1, most), min_size=1, max_size=3))
    left = [count - 1 - t for count in counts for t in range(count)]
    number = len(left)

    def accepted():
        return np.array([draw(st.integers(0, min(MOST, rest))) for rest in left])

    def drawn(values):
        return np.array(draw(st.lists(values, min_size=number, max_size=number)))

    length_N = drawn(st.integers(0, 24))
    return Anchors(
        anchors_R=np.array(counts),
        probability_N=drawn(st.floats(0, 1)),
        head_N=accepted(),
        score_N=drawn(st.floats(0, 24)),
        length_N=length_N,
        lookup_N=np.where(length_N > 0, accepted(), 0),
    )


def responses(given):
    """(head's accepted drafts, lookup's) of each response."""
    ends = np.cumsum(given.anchors_R)[:-1]
    pairs = zip(np.split(given.head_N, ends), np.split(given.lookup_N, ends), strict=True)
    return [(head.tolist(), lookup.tolist()) for head, lookup in pairs]


def steps_of(accepted, picks):
    """Steps of one response, and those at anchors where `picks` is true."""
    t = steps = picked = 0
    while t < len(accepted):
        steps += 1
        picked += picks[t]
        t += accepted[t] + 1
    return steps, picked


@given(anchors(), st.floats(-2, 2))
def test_steps_are_the_literal_walk(given, handicap):
    random = np.random.default_rng(0)
    tables = LookupRule(
        random.uniform(0, MOST, len(PROBABILITIES) + 1),
        random.uniform(0, MOST, (len(SCORES) + 1, len(LENGTHS) + 1)),
        handicap,
    )
    picks = tables.picks_lookup(given)
    combined = combine_drafters(given, tables)
    start = 0
    for r, (head, lookup) in enumerate(responses(given)):
        own = picks[start : start + len(head)].tolist()
        start += len(head)
        accepted = [b if pick else a for a, b, pick in zip(head, lookup, own, strict=True)]
        assert (combined.steps_R[r], combined.lookup_steps_R[r]) == steps_of(accepted, own)


def matrix(accepted_N):
    """Acceptance probabilities of deterministic drafts: 1 up to the first rejected one."""
    return torch.from_numpy((accepted_N[:, None] > np.arange(MOST)).astype(float))


@given(anchors(), st.floats(-2, 2))
def test_steps_equal_the_chain_s_on_the_two_matrices(given, handicap):
    picks = rule(handicap, head=1.0, lookup=1.5).picks_lookup(given)
    a_NK = torch.where(torch.tensor(picks)[:, None], matrix(given.lookup_N), matrix(given.head_N))
    anchors_R = torch.tensor(given.anchors_R)
    chain = replay_chain(pad_anchors(a_NK, anchors_R), anchors_R)
    combined = combine_drafters(given, rule(handicap, head=1.0, lookup=1.5))
    assert (chain.steps_RK[:, -1].numpy() == combined.steps_R).all()


@given(anchors())
def test_one_drafter_alone_is_its_own_replay(given):
    anchors_R = torch.tensor(given.anchors_R)
    for one, accepted_N in ((ALWAYS_HEAD, given.head_N), (ALWAYS_LOOKUP, given.lookup_N)):
        combined = combine_drafters(given, one)
        chain = replay_chain(pad_anchors(matrix(accepted_N), anchors_R), anchors_R)
        assert (combined.steps_R == chain.steps_RK[:, -1].numpy()).all()
        assert combined.lookup_steps_R.sum() == (combined.steps_R.sum() if one.handicap < 0 else 0)


@given(anchors(most=7))
def test_the_bound_is_the_best_of_all_choices(given):
    best = 0
    for head, lookup in responses(given):
        walks = itertools.product((False, True), repeat=len(head))
        choices = ([b if p else a for a, b, p in zip(head, lookup, w, strict=True)] for w in walks)
        best += min(steps_of(accepted, accepted)[0] for accepted in choices)
    assert fewest_steps(given) == best


@given(anchors(), st.floats(-3, 3))
def test_no_rule_takes_fewer_steps_than_the_bound(given, handicap):
    steps = combine_drafters(given, fit_rule(given, TIME)).steps_R.sum()
    assert fewest_steps(given) <= steps
    assert fewest_steps(given) <= combine_drafters(given, rule(handicap, 1.0, 1.0)).steps_R.sum()


@given(anchors())
def test_the_fitted_rule_is_at_least_as_fast_as_either_on_validation(given):
    def time(one):
        combined = combine_drafters(given, one)
        return TIME.of_steps(combined.steps_R, combined.lookup_steps_R).sum()

    assert time(fit_rule(given, TIME)) <= min(time(ALWAYS_HEAD), time(ALWAYS_LOOKUP))


def test_means_of_bins_by_hand():
    """Two bins of a feature; within each, two of another. PRIOR is 10 anchors."""
    accepted = np.array([0, 1, 4, 3])  # mean 2
    table = mean_accepted_by_bin([(np.array([0.1, 0.2, 0.5, 0.9]), [0.5])], accepted)
    low, high = (1 + 10 * 2) / 12, (7 + 10 * 2) / 12  # 0.5 is in the bin above
    assert table == pytest.approx([low, high])
    table = mean_accepted_by_bin(
        [(np.array([0.1, 0.2, 0.5, 0.9]), [0.5]), (np.array([1, 1, 0, 1]), [1])], accepted
    )
    assert table == pytest.approx(
        np.array([[low, (1 + 10 * low) / 12], [(4 + 10 * high) / 11, (3 + 10 * high) / 11]])
    )


def test_a_rule_compares_the_bins_of_each_anchor():
    head = np.arange(len(PROBABILITIES) + 1) / 4  # 0.55 is in bin 5, 1.25
    lookup = np.zeros((len(SCORES) + 1, len(LENGTHS) + 1))
    lookup[4, 3] = 2.0  # score 1.5 to 2, length 3 or 4
    given = Anchors(
        anchors_R=np.array([3]),
        probability_N=np.full(3, 0.55),
        head_N=np.zeros(3, int),
        score_N=np.array([1.5, 1.99, 2.0]),
        length_N=np.array([3, 4, 4]),
        lookup_N=np.zeros(3, int),
    )
    assert LookupRule(head, lookup, 0.5).picks_lookup(given).tolist() == [True, True, False]
    assert not LookupRule(head, lookup, 0.75).picks_lookup(given).any()


def many_anchors(number=4000):
    """The lookup accepts 3 drafts where its score is 5, the head 2 where its probability is 0.9."""
    random = np.random.default_rng(1)
    copies = random.random(number) < 0.4
    sure = random.random(number) < 0.5
    return Anchors(
        anchors_R=np.full(number // 40, 40),
        probability_N=np.where(sure, 0.9, 0.3),
        head_N=np.where(sure, 2, 0),
        score_N=np.where(copies, 5.0, 0.5),
        length_N=np.where(copies, 8, 1),
        lookup_N=np.where(copies, 3, 0),
    )


def test_a_slow_pass_of_the_head_gives_the_lookup_fewer_steps():
    given = many_anchors()
    shares = []
    for pass_ms in (0.0, 10.0):
        combined = combine_drafters(
            given, fit_rule(given, dataclasses.replace(TIME, pass_ms=pass_ms))
        )
        shares.append(combined.lookup_steps_R.sum() / combined.steps_R.sum())
    assert shares[0] > 0.3 and shares[1] == 0
    free = combine_drafters(given, fit_rule(given, StepTime(head_ms=1, lookup_ms=1, pass_ms=0)))
    alone = [combine_drafters(given, one).steps_R.sum() for one in (ALWAYS_HEAD, ALWAYS_LOOKUP)]
    assert free.steps_R.sum() < 0.9 * min(alone)


def test_the_time_of_a_pass_by_hand():
    """At 1 and 3 drafts, the head's step is 2 and 5 longer: a slope of (2 + 15) / (1 + 9)."""
    head, lookup = {1: 23.0, 3: 27.0, 4: 30.0}, {1: 21.0, 3: 22.0, 8: 25.0}
    time = StepTime.of_timed(head, 4, lookup, 8)
    assert (time.head_ms, time.lookup_ms, time.pass_ms) == (30, 25, 1.7)
    # Of 10 steps, 3 have the lookup's drafts and one pass of the head.
    assert time.of_steps(np.array([10]), np.array([3])) == pytest.approx([7 * 30 + 3 * 26.7])
    # Noise may make the head's steps the shorter ones.
    assert StepTime.of_timed(lookup, 8, head, 4).pass_ms == 0


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    case = replay_case(tmp_path_factory.mktemp("tiny"))
    tokens = case.store["r1"].token_ids
    tokens[22:30] = tokens[12:20]  # an n-gram that occurs twice
    return case


def replayed(case, speculator, **settings):
    return replay(
        speculator=speculator,
        target_dir=case.target,
        feature_store=case.store,
        rows=case.rows[:5],  # the last has no step
        depth=K,
        **settings,
    )


@pytest.mark.parametrize(
    ("kind", "settings"), [("ngram", {"prompt_lookup_min": 1}), ("suffix", {})]
)
def test_both_alone_equal_their_replays_for_every_number_of_drafts(case, kind, settings, tmp_path):
    if not kind_named(kind).is_installed():
        pytest.skip("suffix lookup needs arctic-inference")
    texts = [
        LoggedText(
            name, "", "", case.store[name].token_ids.numpy(), case.store[name].completion_start
        )
        for name in ("r0", "r1", "r2", "r3", "r4")
    ]
    responses = [EarlierResponse(text.token_ids_T[3:]) for text in texts[::2]]
    directory = kind_named(kind).prepare(responses, tmp_path, max_gb=1.0, shared=True)
    lookup = Lookup(kind, settings, kind_named(kind).history(directory))
    head = replayed(case, case.target, by_anchor=True)
    sums = lookup_sums(lookup, texts)
    for k in range(1, K + 1):
        given = anchors_of(head, k, texts=texts, lookup=lookup, lookup_k=2 * k)
        assert (combine_drafters(given, ALWAYS_HEAD).steps_R == head.steps_RK[:, k - 1]).all()
        assert (combine_drafters(given, ALWAYS_LOOKUP).steps_R == sums.steps_RK[:, 2 * k - 1]).all()
    assert head.acceptance_length()[-1] > 1.3
    assert given.lookup_N.any() and (given.length_N[given.lookup_N > 0] > 0).all()
    assert (given.score_N[given.lookup_N > 0] > 0).all() == (kind == "suffix")


def test_drafts_by_anchor_are_those_of_the_unroll(case):
    head = replayed(case, case.target, by_anchor=True)
    for name, (accepted, thousandths) in zip(head.sequence_ids, head.anchors, strict=True):
        states = case.store[name]
        tokens = states.token_ids.long()
        drafts = states_of(case.speculator, case.ends, tokens, states.hidden.float())
        for anchor, (number, first) in enumerate(zip(accepted, thousandths, strict=True)):
            t = states.completion_start + anchor
            logits = [case.ends.logits(drafts[j][0, t - 1]) for j in range(K)]
            hits = [
                t + 1 + j < len(tokens) and int(logits[j].argmax()) == tokens[t + 1 + j]
                for j in range(K)
            ]
            assert number == [*hits, False].index(False)
            assert abs(first - 1000 * float(logits[0].softmax(-1).max())) < 0.51


def test_sampled_drafts_have_no_number_of_accepted_ones(case):
    sums = replayed(case, case.target, by_anchor=True, draft_sample_method="probabilistic")
    assert not sums.anchors and not replayed(case, case.target).anchors


def test_drafts_by_anchor_are_joined_selected_and_kept(case):
    sums = replayed(case, case.target, by_anchor=True)
    parts = [sums.select(sums.sequence_ids[:2]), sums.select(sums.sequence_ids[2:])]
    assert ReplaySums.join(parts).anchors == sums.anchors
    loaded = ReplaySums.from_dict(json.loads(json.dumps(sums.as_dict())))
    assert [tuple(anchors) for anchors in loaded.anchors] == sums.anchors
