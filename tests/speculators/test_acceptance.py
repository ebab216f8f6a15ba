"""The chain against sums over step partitions and simulated sampling; p against vLLM's code."""

import itertools

import pytest
import torch

from outrider.speculators.acceptance import (
    MASK_BITS,
    accept_matrix,
    accept_probability,
    logged_token_probability,
    mask_forbidden_tokens,
    pad_anchors,
    replay_chain,
    target_distribution,
)
from outrider.speculators.heads import DraftHead


def test_forbid_reads_vllm_s_bits() -> None:
    """Against vLLM's packing: bit i of word w is token 32 w + i."""
    torch.manual_seed(0)
    bits = 8 * torch.int32.itemsize
    assert bits == MASK_BITS  # vLLM's masks are int32
    vocabulary = 70
    allowed_MV = torch.rand(3, vocabulary) < 0.5
    masks_MW = torch.zeros(3, 3, dtype=torch.int64)
    for row, token in allowed_MV.nonzero().tolist():
        masks_MW[row, token // 32] |= 1 << token % 32
    logits_NV = torch.randn(4, vocabulary)
    index_N = torch.tensor([2, -1, 0, 2])
    # Through uint32, since bit 31 is the sign.
    found_NV = mask_forbidden_tokens(
        logits_NV, masks_MW.to(torch.uint32).view(torch.int32), index_N
    )
    for n, index in enumerate(index_N.tolist()):
        kept_V = torch.ones(vocabulary).bool() if index < 0 else allowed_MV[index]
        assert torch.equal(found_NV[n, kept_V], logits_NV[n, kept_V])
        expected_V = logits_NV[n].masked_fill(~kept_V, -torch.inf).softmax(-1)
        assert torch.equal(found_NV[n].softmax(-1), expected_V)


def literal_expectation(a_AK, anchors: int, k: int):
    """Expected steps, accepted and offered counts over all ways to advance through a response."""
    steps = 0.0
    accepted = [0.0] * k
    offered = [0.0] * k
    for count in range(1, anchors + 1):
        for advances in itertools.product(range(1, k + 2), repeat=count):
            if sum(advances[:-1]) >= anchors or sum(advances) < anchors:
                continue
            probability = 1.0
            t = 0
            history = []
            for advance in advances:
                draft = [float(a_AK[t, j]) if t + j + 1 <= anchors else 0.0 for j in range(k)]
                for j in range(advance - 1):
                    probability *= draft[j]
                if advance <= k:
                    probability *= 1 - draft[advance - 1]
                history.append(advance - 1)
                t += advance
            steps += probability * count
            start = 0
            for taken in history:
                for j in range(taken):
                    accepted[j] += probability
                # The first rejected draft was offered too; drafts past the end were not.
                for j in range(min(taken + 1, k, anchors - start)):
                    offered[j] += probability
                start += taken + 1
    return steps, accepted, offered


def test_chain_equals_the_sum_over_all_partitions():
    torch.manual_seed(0)
    anchors_R = torch.tensor([1, 2, 4, 6])
    a_RAK = torch.rand(4, 6, 3, dtype=torch.float64)
    chain = replay_chain(a_RAK, anchors_R)
    for r, anchors in enumerate(anchors_R.tolist()):
        for k in (1, 2, 3):
            steps, accepted, offered = literal_expectation(a_RAK[r], anchors, k)
            assert chain.steps_RK[r, k - 1].item() == pytest.approx(steps, abs=1e-10)
            assert chain.accepted_RKK[r, k - 1, :k].tolist() == pytest.approx(accepted, abs=1e-10)
            assert chain.offered_RKK[r, k - 1, :k].tolist() == pytest.approx(offered, abs=1e-10)
            assert chain.accepted_RKK[r, k - 1, k:].sum() == 0
            assert chain.offered_RKK[r, k - 1, k:].sum() == 0
    assert chain.tokens_R.tolist() == anchors_R.tolist()


def test_anchors_are_padded_to_the_longest_response():
    a_NK = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    padded = pad_anchors(a_NK, torch.tensor([1, 2]))
    expected = torch.tensor([[[0.1, 0.2], [0.0, 0.0]], [[0.3, 0.4], [0.5, 0.6]]])
    assert torch.equal(padded, expected)
    none = torch.tensor([], dtype=torch.long)
    assert pad_anchors(torch.zeros(0, 2), none).shape == (0, 0, 2)


def test_the_last_logged_token_can_be_drafted_and_none_after_it():
    """Hidden states and heads are one-hot, so that each state drafts a known token."""
    vocabulary = 5
    tokens_BT = torch.tensor([[0, 3, 1, 4]])
    anchor_N = torch.tensor([1, 2, 1])
    a_NK = accept_matrix(
        # Draft 1 of anchor 1 is token 1, of anchor 2 token 4; draft 2 of anchor 1 is token 4.
        states=[torch.eye(vocabulary)[[1, 4, 1]], torch.eye(vocabulary)[[4, 4, 4]]],
        head=DraftHead(torch.eye(vocabulary)),
        lm_head_VH=torch.eye(vocabulary),
        token_ids_BT=tokens_BT,
        hidden_BTH=torch.zeros(1, 4, vocabulary),
        row_N=torch.zeros_like(anchor_N),
        anchor_N=anchor_N,
        last_N=torch.tensor([3, 3, 2]),  # the third response ends one token earlier
        temperature_N=torch.zeros(3),
        top_p_N=torch.ones(3),
    )
    assert a_NK.tolist() == [[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]]


def test_certain_and_hopeless_drafts_bound_the_steps():
    anchors_R = torch.tensor([12])
    assert replay_chain(torch.zeros(1, 12, 3), anchors_R).steps_RK.tolist() == [[12.0] * 3]
    assert replay_chain(torch.ones(1, 12, 3), anchors_R).steps_RK.tolist() == [[6.0, 4.0, 3.0]]
    assert replay_chain(torch.zeros(0, 0, 3), torch.zeros(0, dtype=torch.long)).steps_RK.shape == (
        0,
        3,
    )


VOCABULARY, DEPTH, RESPONSES, LENGTH = 6, 3, 2500, 90


def sample(p_NV):
    return torch.multinomial(p_NV, 1)[:, 0]


def plain_text(p_VV, responses: int):
    x = [torch.zeros(responses, dtype=torch.long)]
    for _ in range(LENGTH):
        x.append(sample(p_VV[x[-1]]))
    return torch.stack(x, dim=1)


def simulate(p_VV, draft_KVV, probabilistic: bool):
    """Steps and accepted drafts of published speculative decoding.

    Draft, accept or resample from the residual, bonus token.
    """
    counts = torch.zeros(DEPTH)
    steps = 0
    last = torch.zeros(RESPONSES, dtype=torch.long)
    left = torch.full((RESPONSES,), LENGTH)
    while len(last):
        steps += len(last)
        alive = torch.ones(len(last), dtype=torch.bool)
        moved = torch.zeros(len(last), dtype=torch.long)
        for j in range(DEPTH):
            p = p_VV[last]
            q = draft_KVV[j, last]
            if not probabilistic:
                q = torch.nn.functional.one_hot(q.argmax(-1), VOCABULARY).double()
            d = sample(q)
            ok = (
                torch.rand(len(d), dtype=torch.float64)
                < (p.gather(1, d[:, None]) / q.gather(1, d[:, None]))[:, 0]
            )
            residual = (p - q).clamp_min(0)
            residual = torch.where(residual.sum(-1, keepdim=True) > 0, residual, p)
            token = torch.where(ok, d, sample(residual))
            counts[j] += (alive & ok & (left >= j + 1)).sum()
            last = torch.where(alive, token, last)
            moved = moved + alive
            alive = alive & ok
        last = torch.where(alive, sample(p_VV[last]), last)
        moved = moved + alive
        left = left - moved
        last = last[left > 0]
        left = left[left > 0]
    return steps, counts


@pytest.mark.parametrize("probabilistic", [False, True])
@pytest.mark.parametrize("drafts", [VOCABULARY, VOCABULARY // 2])
def test_chain_predicts_simulated_rejection_sampling(drafts, probabilistic):
    """Expected steps of text sampled without speculation against about 1e5 counted steps.

    A drafter with fewer tokens never drafts the others, and is accepted against the whole p.
    """
    torch.manual_seed(1)
    target_logits_VV = 2.5 * torch.randn(VOCABULARY, VOCABULARY)
    draft_logits_KVV = target_logits_VV + torch.tensor([0.8, 1.2, 1.8])[
        :, None, None
    ] * torch.randn(DEPTH, VOCABULARY, VOCABULARY)
    temperature = torch.full((VOCABULARY,), 0.8)
    top_p = torch.full((VOCABULARY,), 0.95)
    p_VV = target_distribution(target_logits_VV, temperature, top_p).double()
    ids_D = torch.arange(VOCABULARY)[-drafts:]
    outside_V = torch.arange(VOCABULARY) < ids_D[0]
    draft_KVV = (draft_logits_KVV / 0.8).masked_fill(outside_V, float("-inf")).softmax(-1).double()

    x_RT = plain_text(p_VV, RESPONSES)
    anchors_R = torch.full((RESPONSES,), LENGTH)
    # Tables as hidden states: the state is the one-hot of the last token, the heads are the logit
    # tables. Row r has one token in front.
    tokens_RT = torch.cat([torch.zeros(RESPONSES, 1, dtype=torch.long), x_RT], dim=1)
    row = torch.arange(RESPONSES).repeat_interleave(LENGTH)
    anchor = torch.arange(1, LENGTH + 1).repeat(RESPONSES)
    # Draft s + 1 of anchor t continues the token at t + s.
    states = [
        draft_logits_KVV[s][tokens_RT[row, (anchor + s).clamp(max=LENGTH + 1)]]
        for s in range(DEPTH)
    ]
    first_N = torch.zeros(len(anchor))
    a_NK = accept_matrix(
        states=states,
        head=DraftHead(torch.eye(VOCABULARY)[ids_D], None if drafts == VOCABULARY else ids_D),
        lm_head_VH=torch.eye(VOCABULARY),
        token_ids_BT=tokens_RT,
        hidden_BTH=target_logits_VV[tokens_RT],
        row_N=row,
        anchor_N=anchor,
        last_N=torch.full_like(anchor, LENGTH + 1),
        temperature_N=torch.full(anchor.shape, 0.8),
        top_p_N=torch.full(anchor.shape, 0.95),
        probabilistic=probabilistic,
        first_N=first_N,
    )
    # The head's own distribution over its tokens, at temperature 1.
    first_VD = draft_logits_KVV[0][:, ids_D].softmax(-1)
    torch.testing.assert_close(first_N, first_VD[tokens_RT[row, anchor]].amax(-1))
    chain = replay_chain(pad_anchors(a_NK, anchors_R), anchors_R)
    steps, counts = simulate(p_VV, draft_KVV, probabilistic)
    expected = chain.steps_RK[:, -1]
    assert steps > 80_000
    assert steps == pytest.approx(
        expected.sum().item(), rel=0.01
    )  # two independent texts: a standard error is about 0.25 %
    rates = chain.accepted_RKK[:, -1].sum(0) / expected.sum()
    assert (counts / steps).tolist() == pytest.approx(rates.tolist(), abs=0.01)


def test_the_target_distribution_is_vllms():
    sampler = pytest.importorskip("vllm.v1.sample.ops.topk_topp_sampler")
    torch.manual_seed(2)
    logits = 3 * torch.randn(64, 50)
    logits[:8, 10:20] = logits[:8, 10:11]  # ties
    temperature = torch.full((64,), 0.6)
    top_p = torch.linspace(0.05, 1.0, 64)
    expected = sampler.apply_top_k_top_p_pytorch(logits / 0.6, None, top_p).softmax(-1)
    torch.testing.assert_close(target_distribution(logits, temperature, top_p), expected)
    top_k = torch.arange(64) % 60
    in_engine = torch.where(top_k < 1, 50, top_k).clamp(max=50)  # its off is the vocabulary
    expected = sampler.apply_top_k_top_p_pytorch(logits / 0.6, in_engine, top_p).softmax(-1)
    torch.testing.assert_close(target_distribution(logits, temperature, top_p, top_k), expected)
    greedy = target_distribution(logits, torch.zeros(64), top_p)
    assert torch.equal(greedy.argmax(-1), logits.argmax(-1)) and torch.equal(
        greedy.sum(-1), torch.ones(64)
    )


def test_temperatures_from_1e_5_on_are_sampled_as_in_vllm():
    """`_SAMPLING_EPS` of v1/sample/sampler.py; two logits that tie show which rule was used."""
    tied = torch.tensor([[2.0, 2.0, 0.0]] * 2)
    temperature = torch.tensor([1e-5, 0.9e-5])
    one = torch.ones(2)
    assert target_distribution(tied, temperature, one).tolist() == [
        [0.5, 0.5, 0.0],
        [1.0, 0.0, 0.0],
    ]
    first = torch.tensor([0, 0])
    assert logged_token_probability(tied, first, temperature, one).tolist() == [0.5, 1.0]
    # The draft's q is 1/2 and the target's p is 1: half of the sampled drafts are accepted.
    accepted = accept_probability(tied, first, temperature, one, probabilistic=True)
    assert accepted.tolist() == [0.5, 1.0]


def test_a_nucleus_that_is_exactly_top_p_drops_the_rest():
    """vLLM drops tokens while the cumulative probability is at most 1 - top_p."""
    even = torch.zeros(1, 4)
    found = target_distribution(even, torch.ones(1), torch.tensor([0.5]))
    assert sorted(found[0].tolist()) == [0.0, 0.0, 0.5, 0.5]


def test_a_greedy_request_s_other_tokens_have_their_probability_at_temperature_1():
    logits = torch.log(torch.tensor([[0.6, 0.3, 0.1]]))
    found = logged_token_probability(logits, torch.tensor([1]), torch.zeros(1), torch.ones(1))
    assert found.item() == pytest.approx(0.3)


def test_a_logged_token_just_outside_the_nucleus_keeps_its_probability():
    logits = torch.log(torch.tensor([[0.6, 0.3, 0.1]]))
    half = torch.tensor([0.5])
    assert logged_token_probability(logits, torch.tensor([0]), torch.ones(1), half).item() == 1.0
    cold = logged_token_probability(logits, torch.tensor([1]), half, half)
    assert cold.item() == pytest.approx(0.3**2 / (0.6**2 + 0.3**2 + 0.1**2))


def test_a_greedy_request_is_greedy_under_probabilistic_drafts_too():
    logits = torch.tensor([[0.0, 2.0], [0.0, 2.0]])
    a = accept_probability(
        logits, torch.tensor([1, 0]), torch.zeros(2), torch.ones(2), probabilistic=True
    )
    assert a.tolist() == [1.0, 0.0]
