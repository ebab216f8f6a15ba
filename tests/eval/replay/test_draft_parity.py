"""Draft parity: the unroll drafts what vLLM drafts at every depth, and a mismatch is found."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from outrider.common.errors import OutriderError
from outrider.eval.replay.draft_parity import RecordedStep, Recording, draft_parity, record
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.speculator import Drafting, Speculator
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.kinds.mtp.checkpoint import load_mtp
from outrider.speculators.parity import MOST_NATS, ParityConfig, parity_failure, parity_sums
from outrider.speculators.unroll import Slots, unroll_anchors
from tests.shipped_traffic import token_ids, with_token_ids
from tests.tiny import HIDDEN, VOCAB, save_drafter, write_tiny_target

DEPTH = 3


def logged_prompts(workload: str, count: int) -> list[list[int]]:
    """Prompts of the shipped traffic as the engine logged them."""
    return [token_ids(row)[0] for row in itertools.islice(with_token_ids(workload), count)]


@pytest.mark.engine
def test_the_unroll_and_the_engine_draft_the_same_tokens_at_every_depth(
    short_r1: Path, tmp_path: Path
) -> None:
    from outrider.serving.engine import open_engine
    from outrider.serving.vllm_hooks.draft_recorder import DRAFT_EXTENSION
    from tests.serving.in_process import swap

    target = TargetConfig(model=str(short_r1))
    parity = ParityConfig(max_tokens=64, anchors=300)
    prompts = logged_prompts("resume_screening", 4) + logged_prompts("general", 4)
    custom = load_mtp(short_r1)
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in custom.parameters():
            weight.add_(torch.randn_like(weight) * weight.std() * 0.05 if weight.ndim > 1 else 0)
    save_drafter(custom, short_r1, tmp_path / "custom")
    speculators = {"base": short_r1, "custom": tmp_path / "custom"}
    few_seats = EngineConfig(
        max_num_seqs=4, kv_cache_gb=0.25
    )  # fewer than requests: steps of unlike requests mix
    drafting = Drafting(Speculator.from_name(short_r1), 4)
    recordings = {}
    with open_engine(target, few_seats, drafting, extension=DRAFT_EXTENSION) as engine:
        for name, directory in speculators.items():
            swap(engine, directory, short_r1, short_r1)
            spec = Speculator.from_name(directory).features(short_r1)
            recordings[name] = record(engine, spec, prompts, parity.max_tokens)
    for name, recording in recordings.items():
        found = draft_parity(
            recording=recording,
            speculator_dir=speculators[name],
            target_dir=short_r1,
            k=4,
            parity=parity,
        )
        assert parity_failure(found, parity) is None, found
        for n, equal, near_ties, nats in found:
            assert n > 150 and equal >= 0.97 * n and equal + near_ties >= 0.98 * n, found
            assert nats < 0.05 * n, found
    # The other's weights do not pass for it.
    crossed = draft_parity(
        recording=recordings["custom"],
        speculator_dir=short_r1,
        target_dir=short_r1,
        k=4,
        parity=parity,
    )
    assert "Usual causes" in parity_failure(crossed, parity)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A target, and a recording in which the engine's part was played by the unroll itself."""
    target = write_tiny_target(tmp_path_factory.mktemp("tiny") / "target")
    torch.manual_seed(0)
    speculator = load_mtp(target).eval()
    ends = load_target_ends(target)
    hidden = [torch.randn(20, HIDDEN) for _ in range(3)]
    steps = []
    for request, hidden_TH in enumerate(hidden):
        for anchor in range(4, 14):
            tokens = torch.randint(VOCAB, (anchor + 2,)).tolist()
            logprobs = []
            width = anchor + 2 + DEPTH
            hidden_BTH = torch.zeros(1, width, HIDDEN)
            hidden_BTH[0, : anchor + 1] = hidden_TH[: anchor + 1]
            position_BT = torch.arange(width)[None]
            for depth in range(DEPTH):  # token by token, as the engine drafts
                token_BT = torch.tensor([*tokens, *[0] * (width - len(tokens))])[None]
                rest = torch.zeros_like(token_BT), position_BT, position_BT == anchor
                with torch.no_grad():
                    row = Slots(token_BT, hidden_BTH, *rest)
                    _, states = unroll_anchors(speculator, ends, row, depth + 1)
                logprob, draft = ends.logits(states[depth][0]).log_softmax(-1).max(-1)
                tokens.append(int(draft))
                logprobs.append(float(logprob))
            steps.append(RecordedStep(request, anchor, tokens, tokens[-DEPTH:], logprobs))
    return target, Recording(steps, hidden)


def test_the_same_drafts_agree_wholly(tiny):
    target, recording = tiny
    found = np.array(
        draft_parity(
            recording=recording,
            speculator_dir=target,
            target_dir=target,
            k=DEPTH,
            parity=ParityConfig(),
        )
    )
    assert (found[:, :3] == [30, 30, 0]).all() and found[:, 3].max() < 3e-3


def test_weights_that_draft_no_numbers_are_an_error(tiny):
    target, recording = tiny
    steps = [dataclasses.replace(recording.steps[0], logprobs=[float("nan")] * DEPTH)]
    with pytest.raises(OutriderError, match="are not finite"):
        draft_parity(
            recording=dataclasses.replace(recording, steps=steps),
            speculator_dir=target,
            target_dir=target,
            k=DEPTH,
            parity=ParityConfig(),
        )


@pytest.mark.parametrize("drafts", [100, 200, 500, 2000])
def test_the_number_of_drafts_does_not_decide_whether_a_sound_engine_is_refused(drafts):
    """At a true share below the limit at most 5 % are refused, and 5 % others nearly always."""
    random = np.random.default_rng(0)
    config = ParityConfig()
    depths = 4

    def refused(share: float) -> float:
        found = random.binomial(drafts, share, (400, depths))
        sums = ([(drafts, drafts - other, 0, 0.01 * drafts) for other in row] for row in found)
        return np.mean([parity_failure(each, config) is not None for each in sums])

    assert max(refused(share) for share in (0.004, 0.006, 0.008)) <= 0.05
    assert refused(0.05) > 0.7 and (drafts < 200 or refused(0.05) > 0.9)


def shifted_states(speculator, recording):
    """As if the engine had read the state of the token before."""
    inputs = [torch.roll(inputs_TX, 1, dims=0) for inputs_TX in recording.inputs]
    return speculator, dataclasses.replace(recording, inputs=inputs)


def other_norm(speculator, recording):
    """A final norm that was not loaded changes the recycled state and the head of depth 0."""
    speculator.norm.weight.data = torch.rand(HIDDEN) + 0.2
    return speculator, recording


@pytest.mark.parametrize("break_it", [shifted_states, other_norm])
def test_what_drafts_otherwise_is_refused_with_the_usual_causes(tiny, tmp_path, break_it):
    target, recording = tiny
    speculator, recording = break_it(load_mtp(target), recording)
    save_drafter(speculator, target, tmp_path / "broken")
    why = parity_failure(
        draft_parity(
            recording=recording,
            speculator_dir=tmp_path / "broken",
            target_dir=target,
            k=DEPTH,
            parity=ParityConfig(),
        ),
        ParityConfig(),
    )
    assert "Usual causes: weights that were not loaded" in why and "at depth 3" in why


def test_a_near_tie_is_told_from_another_draft():
    q_ND = torch.tensor([[0.5, 0.49, 0.01], [0.5, 0.49, 0.01], [0.5, 0.3, 0.2], [0.5, 0.49, 0.01]])
    draft_N = torch.tensor([0, 1, 1, 2])
    others_N = q_ND[torch.arange(4), draft_N].log() + torch.tensor([0.0, 0.5, 0.0, -3.0])
    found = parity_sums(q_ND.log(), draft_N, others_N, ParityConfig(near_tie_nats=0.05))
    assert found.tolist() == pytest.approx([4, 1, 1, 0.5 + MOST_NATS])
