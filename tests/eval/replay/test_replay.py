"""Batched replay against a literal walk through each response, one k at a time."""

import dataclasses
import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from outrider.eval.replay.perfect_drafter import PerfectDrafter
from outrider.eval.replay.regions import NAMES, TIMED
from outrider.eval.replay.replay import (
    CEILING,
    ReplayModel,
    ReplayResponse,
    acceptances,
    load_replay_model,
    replay,
    replay_batches,
    unroll_responses,
)
from outrider.eval.replay.sums import ARRAYS, ReplaySums, compare_replays, length_at
from outrider.eval.stats.clusters import INDEPENDENT
from outrider.serving.client import Sampling
from outrider.speculators.acceptance import pad_anchors, replay_chain, target_distribution
from outrider.speculators.features import FINAL_NORM, FeatureSpec, FeatureStream, SequenceStates
from outrider.speculators.kinds.protocol import MOST_LOOKED_UP, Lookup
from tests.eval.replay_case import (
    DEPTH,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    replay_case,
    replayed,
    states_of,
)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    return replay_case(tmp_path_factory.mktemp("tiny"))


def literal(case, features, k, acceptance):
    """Expected (steps, accepted per position) of one response, by recursion over steps."""
    tokens = features.token_ids.long()
    hidden = features.hidden.float()
    last = len(tokens) - 1
    drafts = states_of(case.speculator, case.ends, tokens, hidden)

    def step(t):
        """Steps and accepted drafts from anchor t to the end."""
        if t >= last:
            return np.zeros(1 + k)
        total = np.zeros(1 + k)
        reached = 1.0
        total[0] = 1
        for j in range(1, k + 1):
            a = (
                acceptance(case.ends, drafts[j - 1][0, t - 1], hidden[t + j - 1], tokens[t + j])
                if t + j <= last
                else 0.0
            )
            if a < 1:
                total += reached * (1 - a) * step(t + j)
            reached *= a
            if not reached:
                return total
            total[j] += reached
        return total + reached * step(t + k + 1)

    return step(features.completion_start)


def greedy_drafts(ends, state, hidden, token):
    return float(ends.logits(state).argmax() == token)


def sampled_drafts(ends, state, hidden, token):
    q = (ends.logits(state) / TEMPERATURE).softmax(-1)[token]
    logits = ends.logits(hidden)[None]
    sampling = torch.tensor([[TEMPERATURE], [TOP_P], [TOP_K]])
    p = target_distribution(logits, *sampling)[0, token]
    if p == 0:
        p = (logits[0] / TEMPERATURE).softmax(-1)[token]
    return min(1.0, float(q / p))


@pytest.mark.parametrize(
    ("method", "acceptance"), [("greedy", greedy_drafts), ("probabilistic", sampled_drafts)]
)
def test_replay_is_the_literal_walk(case, method, acceptance, monkeypatch):
    monkeypatch.setattr(
        "outrider.eval.replay.replay.BATCH_TOKENS", 60
    )  # several sequences a batch, several batches
    sums = replayed(case, draft_sample_method=method)
    assert sums.sequence_ids == [f"r{number}" for number in range(5)]
    total = {k: np.zeros(1 + k) for k in range(1, DEPTH + 1)}
    for r, name in enumerate(sums.sequence_ids):
        features = case.store[name]
        assert sums.tokens_R[r] == len(features.token_ids) - features.completion_start - 1
        for k in range(1, DEPTH + 1):
            expected = literal(case, features, k, acceptance)
            total[k] += expected
            assert sums.steps_RK[r, k - 1] == pytest.approx(expected[0], rel=1e-4)
            assert sums.accepted_RKK[r, k - 1, :k] == pytest.approx(
                expected[1:], rel=1e-3, abs=1e-6
            )
    for k, (steps, *accepted) in total.items():
        assert sums.cumulative(k) == pytest.approx(np.array(accepted) / steps, rel=1e-3, abs=1e-6)
    if method == "greedy":
        assert sums.acceptance_length()[-1] > 1.3  # the case has accepted drafts to count


def test_regions_split_tokens_and_steps_without_a_rest(case):
    plain = replayed(case)
    sums = replayed(case, by_region=True)
    assert plain.region_tokens_RG.shape == (5, 0) and plain.regions == ()
    assert plain.region_steps_RGK.shape == (5, 0, DEPTH) and sums.regions == NAMES
    assert np.array_equal(plain.steps_RK, sums.steps_RK)
    for dimension in {dimension for dimension, _ in sums.regions}:
        inside = [g for g, (name, _) in enumerate(sums.regions) if name == dimension]
        assert np.allclose(sums.region_tokens_RG[:, inside].sum(axis=1), sums.tokens_R)
        assert np.allclose(sums.region_steps_RGK[:, inside].sum(axis=1), sums.steps_RK)


@pytest.mark.parametrize("timed", [1, 3, 1000])
def test_timed_tokens_are_those_of_a_response_that_was_cut(case, timed):
    """Against a literal sum of visits of the anchors whose next token is served."""
    sums = replayed(case, by_region=True, timed_tokens=timed)
    assert [name for name, _ in sums.regions][-2:] == [TIMED, TIMED]
    model = load_replay_model(case.target, case.target, "float32")
    (batch,) = replay_batches(case.store, case.rows, None)
    a_NK, anchors_R, _ = acceptances(model, False, batch, DEPTH)
    visits_RAK = replay_chain(pad_anchors(a_NK, anchors_R), anchors_R).visits_RAK.numpy()
    # A response of n served tokens has n - 1 after its first, one for each of its first anchors.
    for k in range(1, DEPTH + 1):
        served = [visits_AK[: timed - 1, k - 1].sum() for visits_AK in visits_RAK]
        assert sums.timed_steps(k) == pytest.approx(np.array(served), abs=1e-9)
    assert sums.timed_steps(0).tolist() == [
        min(tokens, timed - 1) for tokens in sums.tokens_R.tolist()
    ]


def test_a_greedy_override_makes_sampled_drafts_deterministic(case):
    greedy = replayed(case, draft_sample_method="greedy")
    override = replayed(case, draft_sample_method="probabilistic", sampling=Sampling(0.0, 1.0))
    assert np.allclose(greedy.steps_RK, override.steps_RK)


def test_sums_survive_json_and_compare_pairs_them(case):
    sums = replayed(case, by_region=True)
    loaded = ReplaySums.from_dict(json.loads(json.dumps(sums.as_dict())))
    assert loaded.sequence_ids == sums.sequence_ids and loaded.regions == list(sums.regions)
    for name in ARRAYS:
        assert np.allclose(getattr(loaded, name), getattr(sums, name), atol=1e-6), name
    slow = dataclasses.replace(loaded, steps_RK=2 * loaded.steps_RK)
    estimates = compare_replays(slow, loaded, 2)
    assert estimates["ratio"].value == pytest.approx(2.0)
    assert estimates["ratio"].low is None and estimates["ratio"].clusters == 3  # too few sessions
    length = sums.acceptance_length()[1]
    assert estimates["base"].value == pytest.approx(length / 2)
    assert estimates["custom"].value == pytest.approx(length)


def lookup_drafts(text, k):
    """The k tokens after the first occurrence of the longest suffix of 4 to 2 tokens."""
    for n in (4, 3, 2):
        for start in range(len(text) - n):
            if text[start : start + n] == text[-n:]:
                return text[start + n : start + n + k]
    return []


def walked(text, first, k, drafts_of):
    """Steps and accepted drafts by position of the engine that writes this text."""
    t = first
    steps = 0
    reached = [0] * k
    while t < len(text) - 1:
        accepted = 0
        drafts = drafts_of(t)
        while (
            accepted < len(drafts)
            and t + 1 + accepted < len(text)
            and drafts[accepted] == text[t + 1 + accepted]
        ):
            reached[accepted] += 1
            accepted += 1
        t = t + accepted + 1
        steps = steps + 1
    return steps, reached


@pytest.fixture(scope="module")
def copying(case):
    """Responses over few tokens, which repeat themselves and their prompts."""
    random = np.random.default_rng(0)
    store = type(case.store)()
    rows = []
    for number, (prompt, length) in enumerate([(40, 90), (1, 60), (3, 6), (2, 4)]):
        tokens = random.integers(5, size=length)
        for index in range(10, length - 8, 16):
            tokens[index : index + 8] = tokens[index - 9 : index - 1]
        hidden = torch.randn(
            length, case.ends.lm_head_VH.shape[1], generator=torch.Generator().manual_seed(number)
        )
        store[f"r{number}"] = SequenceStates(
            token_ids=torch.tensor(tokens, dtype=torch.int32),
            completion_start=prompt,
            streams={FINAL_NORM: hidden.bfloat16()},
        )
        rows.append(case.rows[0] | {"sequence_id": f"r{number}"})
    return store, rows


@pytest.mark.parametrize("method", ["greedy", "probabilistic"])
def test_lookup_is_the_literal_walk(case, copying, method):
    """Its drafts are one-hot whatever the sampling of drafts."""
    store, rows = copying
    sums = replay(
        speculator=Lookup("ngram"),
        target_dir=case.target,
        feature_store=store,
        rows=rows,
        depth=6,
        draft_sample_method=method,
        by_region=True,
    )
    assert np.allclose(sums.region_steps_RGK[:, :2].sum(axis=1), sums.steps_RK)
    for (r, features), k in itertools.product(enumerate(store.values()), range(1, 7)):
        text = features.token_ids.tolist()
        steps, reached = walked(
            text, features.completion_start, k, lambda t, x=text, k=k: lookup_drafts(x[: t + 1], k)
        )
        assert sums.steps_RK[r, k - 1] == steps
        assert sums.accepted_RKK[r, k - 1, :k].tolist() == reached
    assert sums.acceptance_length()[-1] > 1.5  # the case has accepted drafts to count


def test_no_speculation_makes_a_step_a_token(case, copying):
    sums = replay(Lookup("none"), case.target, *copying, DEPTH)
    assert sums.acceptance_length() == [1.0] * MOST_LOOKED_UP and sums.accepted_RKK.sum() == 0


def test_the_ceiling_is_the_literal_walk_of_the_target_s_most_likely_tokens(case):
    store = {}
    rows = case.rows[:5]
    for row in rows:  # three in four tokens are the most likely one
        features = case.store[row["sequence_id"]]
        best = case.ends.logits(features.hidden.float()).argmax(-1).tolist()
        text = features.token_ids.tolist()
        start = features.completion_start
        for index in range(start, len(text)):
            if index % 4:
                text[index] = best[index - 1]
        store[row["sequence_id"]] = SimpleNamespace(
            token_ids=torch.tensor(text, dtype=torch.int32),
            hidden=features.hidden,
            streams=features.streams,
            completion_start=start,
            best=best,
        )
    sums = replay(
        speculator=CEILING,
        target_dir=case.target,
        feature_store=type(case.store)(store),
        rows=rows,
        depth=DEPTH,
    )
    for (r, features), k in itertools.product(enumerate(store.values()), range(1, DEPTH + 1)):
        text = features.token_ids.tolist()
        best = features.best
        steps, reached = walked(
            text, features.completion_start, k, lambda t, b=best, k=k: b[t : t + k]
        )
        assert sums.steps_RK[r, k - 1] == steps
        assert sums.accepted_RKK[r, k - 1, :k].tolist() == reached
    assert sums.acceptance_length()[-1] > 2
    drawn = replay(
        speculator=CEILING,
        target_dir=case.target,
        feature_store=type(case.store)(store),
        rows=rows,
        depth=DEPTH,
        draft_sample_method="probabilistic",
    )
    # The prefill delivers the first token of a response.
    assert drawn.tokens_R.tolist() == [
        len(features.token_ids) - features.completion_start - 1 for features in store.values()
    ]
    assert (drawn.steps_RK == np.ceil(drawn.tokens_R[:, None] / np.arange(2, DEPTH + 2))).all()


def counted(tokens, steps, accepted, region_tokens, region_steps):
    """Sums of responses r0, r1, ... in sessions s0, s1, ..., for k = 1 and 2, in one region."""
    count = len(tokens)
    return ReplaySums(
        sequence_ids=[f"r{number}" for number in range(count)],
        sessions=[f"s{number}" for number in range(count)],
        users=[INDEPENDENT] * count,
        tokens_R=np.array(tokens, float),
        steps_RK=np.array(steps, float),
        accepted_RKK=np.array(accepted, float),
        region_tokens_RG=np.array(region_tokens, float)[:, None],
        region_steps_RGK=np.array(region_steps, float)[:, None],
        regions=NAMES[:1],
    )


@pytest.fixture
def six():
    """Six responses of 10 to 60 tokens, whose steps differ for each k."""
    return counted(
        tokens=[10, 20, 30, 40, 50, 60],
        steps=[[6, 5], [10, 8], [20, 14], [30, 20], [26, 16], [40, 30]],
        accepted=[[[4 + r, 0], [3 + r, 1 + r]] for r in range(6)],
        region_tokens=[4, 0, 6, 0, 5, 9],
        region_steps=[[2, 1], [0, 0], [3, 3], [0, 0], [4, 2], [6, 3]],
    )


def jackknife_of(numerators, denominators):
    """The ratio of sums and its 95 % interval, by leaving out one session after the other.

    Variance: Efron and Stein. Degrees of freedom: the trace formula of Bell and McCaffrey.
    """
    from scipy.stats import t

    count = len(numerators)
    value = np.sum(numerators) / np.sum(denominators)
    logs = np.array(
        [
            np.log(np.delete(numerators, g).sum() / np.delete(denominators, g).sum())
            for g in range(count)
        ]
    )
    error = np.sqrt((count - 1) * logs.var())
    share = (numerators / np.sum(numerators) + denominators / np.sum(denominators)) / 2
    center = np.eye(count) - np.outer(np.ones(count), share)
    product = np.diag((share / (1 - share)) ** 2) @ center @ center.T
    degrees = np.trace(product) ** 2 / np.trace(product @ product)
    factor = np.exp(t.ppf(0.975, degrees) * error)
    return value, value / factor, value * factor


@pytest.mark.parametrize("k", [1, 2])
def test_a_length_has_the_jackknife_s_interval_over_sessions(six, k):
    tokens = np.array([10, 20, 30, 40, 50, 60])
    steps = np.array({1: [6, 10, 20, 30, 26, 40], 2: [5, 8, 14, 20, 16, 30]}[k])
    estimate = length_at(six, k)
    # The shares of a session differ between tokens and steps: both are in the degrees of freedom.
    found = (estimate.value, estimate.low, estimate.high)
    assert found == pytest.approx(jackknife_of(tokens, steps), rel=1e-6)
    assert six.acceptance_length()[k - 1] == pytest.approx(tokens.sum() / steps.sum())


def test_accepted_shares_have_intervals_by_position_up_to_one(six):
    steps = np.array([5, 8, 14, 20, 16, 30])
    positions = np.array([[3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6]])
    found = six.cumulative_intervals(2)
    for (low, high), accepted in zip(found, positions, strict=True):
        assert (low, high) == pytest.approx(jackknife_of(accepted, steps)[1:], rel=1e-6)
    # Nearly all drafts are accepted: the interval of the share would reach 1.05.
    steps = np.array([5, 8, 14, 20, 16, 30])
    nearly = steps - np.array([0, 0, 4, 0, 0, 0])
    accepted = six.accepted_RKK.copy()
    accepted[:, 1, 0] = nearly
    accepted[:, 1, 1] = 0
    first, second = dataclasses.replace(six, accepted_RKK=accepted).cumulative_intervals(2)
    _, low, high = jackknife_of(nearly, steps)
    assert high > 1 and first == pytest.approx((low, 1.0), rel=1e-6)
    assert second is None  # nothing was accepted there


def test_a_region_has_only_the_responses_with_tokens_there(six):
    inside = six.region(0)
    assert inside.sequence_ids == ["r0", "r2", "r4", "r5"]
    assert inside.sessions == ["s0", "s2", "s4", "s5"]
    assert inside.tokens_R.tolist() == [4, 6, 5, 9]
    assert inside.steps_RK.tolist() == [[2, 1], [3, 3], [4, 2], [6, 3]]


def test_selected_responses_keep_the_given_order_and_sessions(six):
    chosen = six.select(["r4", "of one token", "r1"], sessions={"r4": "session r4"})
    assert chosen.sequence_ids == ["r4", "r1"] and chosen.sessions == ["session r4", "s1"]
    assert chosen.tokens_R.tolist() == [50, 20]
    joined = ReplaySums.join([six.select(["r0", "r1"]), six.select(["r2"])])
    assert joined.tokens_R.tolist() == [10, 20, 30] and joined.regions == six.regions
    assert ReplaySums.join([joined]).as_dict() == joined.as_dict()


def test_written_sums_have_six_decimals(six):
    third = dataclasses.replace(six, tokens_R=np.full(6, 1 / 3))
    assert third.as_dict()["tokens_R"] == [0.333333] * 6


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([60, 40, 20, 80, 30], [[60, 40], [20, 80], [30]]),  # two batches are exactly full
        ([150, 20, 81], [[150], [20], [81]]),  # a long sequence is alone, and not after nothing
        ([40, 40, 40, 40, 40], [[40, 40], [40, 40], [40]]),
        ([3], [[3]]),
    ],
)
def test_a_batch_is_filled_up_to_its_limit_in_order(case, monkeypatch, lengths, expected):
    monkeypatch.setattr("outrider.eval.replay.replay.BATCH_TOKENS", 100)
    store = type(case.store)()
    rows = []
    for number, length in enumerate(lengths):
        store[f"r{number}"] = SequenceStates(torch.zeros(length, dtype=torch.int32), 1, {})
        rows.append(case.rows[0] | {"sequence_id": f"r{number}"})
    found = [
        [len(response.states.token_ids) for response in batch]
        for batch in replay_batches(store, rows, None)
    ]
    assert found == expected


class RecordingDrafter(PerfectDrafter):
    """The perfect drafter, which keeps what it was given."""

    def unroll(self, ends, slots, depth):
        self.slots = slots
        return slots.anchor_BT.flatten().nonzero()[:, 0], []


@pytest.mark.parametrize("responses", [1, 3])
def test_a_drafter_reads_the_streams_of_its_spec(case, responses):
    width = case.ends.lm_head_VH.shape[1]
    batch = []
    for row in case.rows[:responses]:
        states = case.store[row["sequence_id"]]
        layers = {
            "layer_1": torch.randn(len(states.token_ids), 5).bfloat16(),
            "layer_2": torch.randn(len(states.token_ids), 7).bfloat16(),
        }
        states = dataclasses.replace(states, streams=states.streams | layers)
        batch.append(ReplayResponse(row, states, Sampling(0.0, 1.0)))

    def given(*streams):
        spec = FeatureSpec(tuple(FeatureStream(*stream) for stream in streams))
        drafter = RecordingDrafter()
        drafted = unroll_responses(ReplayModel(drafter, case.ends, spec, "cpu"), batch, DEPTH)
        return drafted, drafter.slots

    _, slots = given(("layer_2", 7), ("layer_1", 5))
    rows = [
        torch.cat([response.states.streams[name] for name in ("layer_2", "layer_1")], dim=1)
        for response in batch
    ]
    assert torch.equal(slots.inputs_BTX[0], torch.cat(rows).float())
    # Inputs and the teacher's states are one tensor: R1's would take 235 MB more per batch.
    drafted, slots = given((FINAL_NORM, width))
    assert slots.inputs_BTX.data_ptr() == drafted.hidden_BTH.data_ptr()
