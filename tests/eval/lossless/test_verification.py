"""Findings from outputs and counters, with a store of random states instead of an engine."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from outrider.common.errors import OutriderError
from outrider.eval.bench.outputs import Outputs, RecordedOutputs
from outrider.eval.bench.prompts import Prompt
from outrider.eval.config import EvalConfig
from outrider.eval.context import EvaluationContext, EvaluationData, EvaluationFolders
from outrider.eval.lossless import verification
from outrider.eval.lossless.verification import engine_findings, judge_tasks
from outrider.eval.replay.replay import replay
from outrider.eval.results.parts import Drafters, Variants
from outrider.serving.client import Sampling, SpeculationCounters
from outrider.serving.config import ServingConfig, TargetConfig
from outrider.serving.speculator import Speculator
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.features import FINAL_NORM, SequenceStates
from tests.eval.replay_case import Store
from tests.tiny import HIDDEN, VOCAB, write_tiny_target

K = 2

NOTHING = SpeculationCounters(
    drafts=0, draft_tokens=0, accepted_tokens=0, accepted_per_position=(), generation_tokens=0
)


def test_the_checks_read_the_states_of_the_outputs(tmp_path):
    target = write_tiny_target(tmp_path / "target")
    torch.manual_seed(0)
    prompts = [
        Prompt(sequence_id=f"q{n}", session=f"s{n}", user="", token_ids=[1, 2, 3 + n], text="text")
        for n in range(3)
    ]
    greedy = [torch.randint(VOCAB, (9,)).tolist() for _ in prompts]
    other = [greedy[0], [*greedy[1][:4], (greedy[1][4] + 1) % VOCAB, 7], greedy[2]]
    sampled = [torch.randint(VOCAB, (12,)).tolist() for _ in prompts]
    store = Store()
    for prompt in prompts:
        for ids in (*greedy, *other, *sampled):
            row = verification.row_id(prompt, ids)
            tokens = torch.tensor([*prompt.token_ids, *ids]).int()
            store[row] = SequenceStates(
                token_ids=tokens,
                completion_start=len(prompt.token_ids),
                streams={FINAL_NORM: torch.randn(len(tokens), HIDDEN).bfloat16()},
            )

    def counted(ids, sampling):
        rows = [
            {"sequence_id": verification.row_id(p, i), "session": p.session}
            for p, i in zip(prompts, ids, strict=True)
        ]
        sums = replay(
            speculator=target,
            target_dir=target,
            feature_store=store,
            rows=rows,
            depth=K,
            draft_sample_method="greedy",
            sampling=sampling,
        )
        drafts = float(sums.steps_RK[:, K - 1].sum())
        return SpeculationCounters(
            drafts=drafts,
            draft_tokens=2 * drafts,
            accepted_tokens=3,
            accepted_per_position=(2, 1),
            generation_tokens=0,
        )

    def recorded(ids, sampling):
        return RecordedOutputs(token_ids=ids, counted=[counted(ids, sampling)] + [NOTHING] * 2)

    one = Sampling(0.0, 1.0)
    two = Sampling(0.6, 0.95)
    sampled_pass = recorded(sampled, two)
    greedy_custom = recorded(other, one)
    more = replace(greedy_custom.counters, drafts=1.25 * greedy_custom.counters.drafts)
    fewer = replace(sampled_pass.counters, drafts=40)
    custom = RecordedOutputs(token_ids=sampled, counted=[fewer, NOTHING, NOTHING])
    outputs = Outputs(
        samplings={"greedy": one, "sampled": two},
        greedy=Variants(
            none=recorded(greedy, one), base=recorded(greedy, one), custom=greedy_custom
        ),
        sampled=Variants(none=sampled_pass, base=sampled_pass, custom=custom),
        control=RecordedOutputs(token_ids=other[:2], counted=[NOTHING] * 2),
        repeated=RecordedOutputs(token_ids=[other[0], greedy[1]], counted=[more, NOTHING]),
    )
    mtp = Speculator.from_name(target)
    context = EvaluationContext(
        recipe="a_test",
        target=TargetConfig(model=str(target)),
        serving=ServingConfig(),
        settings=EvalConfig(),
        depth=K,
        speculators={"base": mtp, "custom": mtp},
        data=EvaluationData(tmp_path, {}, tmp_path),
        folders=EvaluationFolders(*[tmp_path] * 4),
    )
    found = engine_findings(
        context=context,
        k=Drafters[int](base=K, custom=K),
        prompts=prompts,
        outputs=outputs,
        store=store,
    )
    assert found.greedy.base.equal == 3
    # The control's second response has the same difference, so speculation adds none.
    custom = found.greedy.custom
    control = found.control
    assert [*custom.near_ties, *custom.unexplained] == [1] and control.responses == 2
    assert control.unexplained == custom.unexplained and found.excess.value == 0.0
    assert found.greedy_acceptance_length.base == pytest.approx(
        1 + 3 / outputs.greedy.base.counters.drafts
    )

    scores = verification.TargetScores(target, store, "float32")
    logits = load_target_ends(target).logits(
        store[verification.row_id(prompts[1], greedy[1])].hidden[3 + 4 - 1].float()
    )
    token = greedy[1][4]
    changed = other[1][4]
    assert scores.gap(
        prompts[1], greedy[1], index=4, token=token, alternative=changed
    ) == pytest.approx(abs(float(logits[token] - logits[changed])))
    difference = found.replay_vs_engine
    assert difference.base == pytest.approx(0.0)
    # Of the repeated responses only the first is equal; it took a quarter more steps.
    assert difference.control == pytest.approx(0.25)
    one = greedy_custom.counters.drafts
    other = sampled_pass.counters.drafts
    assert difference.custom == pytest.approx((one + other) / (one + 40) - 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scores_of_a_long_response_are_made_piece_by_piece(tmp_path, dtype):
    target = write_tiny_target(tmp_path / "target")
    torch.manual_seed(0)
    length = 5 * verification.POSITIONS_AT_A_TIME + 7
    prompt = Prompt(sequence_id="q", session="s", user="", token_ids=[1, 2, 3], text="text")
    ids = torch.randint(VOCAB, (length,)).tolist()
    tokens = torch.tensor([*prompt.token_ids, *ids]).int()
    hidden = torch.randn(len(tokens), HIDDEN).bfloat16()
    states = SequenceStates(tokens, completion_start=3, streams={FINAL_NORM: hidden})
    store = Store({verification.row_id(prompt, ids): states})
    found = verification.TargetScores(target, store, dtype).logprobs(prompt, ids, 0.6)
    ends = load_target_ends(target, getattr(torch, dtype))
    logits = ends.logits(states.hidden[2:-1].to(ends.lm_head_VH.dtype)).float() / 0.6
    literal = logits.log_softmax(-1).gather(-1, torch.tensor(ids)[:, None])[:, 0]
    assert found == pytest.approx(literal.numpy(), abs=1e-5)


def test_tasks_leave_out_prompts_without_an_answer_and_count_errors(monkeypatch):
    tokenizer = SimpleNamespace(eos_token_id=0, decode=lambda ids: " ".join(map(str, ids)))
    loaded = "outrider.eval.lossless.verification.load_tokenizer"
    monkeypatch.setattr(loaded, lambda _: tokenizer)
    target = SimpleNamespace(directory=lambda: "nowhere")

    def check(prompt, text):
        return None if prompt == "no" else int(prompt) == int(text)

    def judged(texts, answers, times=1):
        """Solved tasks of prompts with these texts; custom's greedy answers are others."""
        monkeypatch.setattr(verification, "task_of", lambda at: at.task and check)
        prompts = [
            Prompt(sequence_id=text, session="s", user="", token_ids=[1], text=text)
            for text in texts
        ]
        same, other = (
            RecordedOutputs(token_ids=[[answer, 0] for answer in ids], counted=[NOTHING] * len(ids))
            for ids in ([5] * len(texts), answers)
        )
        outputs = Outputs(
            samplings={"greedy": Sampling(), "sampled": Sampling()},
            greedy=Variants(none=same, base=same, custom=other),
            sampled=Variants(none=same, base=same, custom=same),
            control=same,
            repeated=same,
        )
        return judge_tasks([outputs] * times, prompts, target, EvalConfig(task="a:b"))

    found = judged(["5", "no"], [6, 5])
    assert (found.none, found.custom, found.errors) == (2, 1, 0)
    found = judged(["5", "no"], [6, 5], times=2)
    assert (found.none, found.custom, found.custom_minus_none.observations) == (4, 2, 4)
    assert judged(["no"], [5]) is None
    found = judged(["5", "five"], [5, 5])
    assert found.none == 2 and found.errors == 2 * 3
    assert found.first_error.startswith("ValueError at ") and "five" not in found.first_error
    with pytest.raises(OutriderError, match=r"raised on all responses, first ValueError at .*kept"):
        judged(["five"], [5])
