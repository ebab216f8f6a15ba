"""vLLM's counters against exact replay of the same responses, for trained heads.

Heads are trained on the engine's states, and compared with it draft by draft. N-gram lookup:
tests/gpu/test_lookups.py.
"""

from pathlib import Path

import pytest

from outrider.common.files import read_json
from outrider.data.features.capture import capture_ids
from outrider.eval.replay.draft_parity import draft_parity, record
from outrider.eval.replay.replay import replay
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import AskedRow, Engine, open_engine
from outrider.serving.speculator import Drafting, Speculator
from outrider.serving.vllm_hooks.draft_recorder import DRAFT_EXTENSION
from outrider.speculators.base import planned_config
from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.kinds import trainable_kind
from outrider.speculators.parity import ParityConfig, parity_failure, parity_in_words
from outrider.training.config import TrainingConfig
from outrider.training.distributed.launch import launch_training
from tests.gpu.inputs import logged_rows
from tests.training.corpus import training_spec

K, TRAINED, ASKED, LIMIT = 4, 64, 16, 160
LEAST = {"eagle3": 2, "p_eagle": 1.5, "dflash": 1.3}
"""Acceptance lengths above which a head has learned something in a minute."""
DRAFTS, ACCEPTED = (f"vllm:spec_decode_num_{name}" for name in ("drafts", "accepted_tokens"))
PARITY = ParityConfig(prompts=8, max_tokens=96, anchors=200)

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def counted(engine: Engine) -> dict[str, float]:
    """vLLM's counters since its start."""
    return {m.name: m.value for m in engine.llm.get_metrics() if hasattr(m, "value")}


@pytest.mark.parametrize("kind_name", LEAST)
def test_a_briefly_trained_head_drafts_and_is_counted_as_predicted(
    nano_r1: Path, tmp_path: Path, kind_name: str
) -> None:
    target = TargetConfig(model=str(nano_r1))
    few = EngineConfig(max_num_seqs=4, kv_cache_gb=0.25)
    kind = trainable_kind(kind_name)
    speculator = SpeculatorConfig(kind=kind_name, depth=K)
    target_config = read_json(nano_r1 / "config.json")
    spec = kind.features(planned_config(speculator, target_config), target_config)
    rows = logged_rows(TRAINED + ASKED)
    with open_engine(target, few) as engine:
        capture_ids(engine, rows[:TRAINED], tmp_path / "features", features=spec)
    names = [name for name, _, _ in rows[:TRAINED]]
    training = TrainingConfig(
        scratch_epochs=8,
        row_tokens=2048,
        evaluate_every=1000,
        checkpoint_every=1000,
    )
    parts = {"train": names[8:], "validation": names[:8]}
    states = tmp_path / "features"
    result = launch_training(training_spec(tmp_path, nano_r1, states, parts, speculator, training))
    assert result["best"]["acceptance_length"][-1] > LEAST[kind_name]
    head = tmp_path / "speculator"
    asked = [
        AskedRow(
            row_id=name, token_ids=token_ids[:start], temperature=0.0, top_p=1.0, max_tokens=LIMIT
        )
        for name, token_ids, start in rows[TRAINED:]
    ]
    drafting = Drafting(Speculator.from_name(head), K)
    with open_engine(target, few, drafting, extension=DRAFT_EXTENSION) as engine:
        before = counted(engine)[DRAFTS]
        answers = engine.answer(asked)
        steps = counted(engine)[DRAFTS] - before
        reads = Speculator.from_name(head).features(nano_r1)
        written = [
            (row.row_id, [*row.token_ids, *answer], len(row.token_ids))
            for row, answer in zip(asked, answers, strict=True)
        ]
        store = capture_ids(engine, written, tmp_path / "answers", features=reads)
        prompts = [row.token_ids for row in asked[: PARITY.prompts]]
        recording = record(engine, reads, prompts, PARITY.max_tokens)
    found = draft_parity(
        recording=recording, speculator_dir=head, target_dir=nano_r1, k=K, parity=PARITY
    )
    assert parity_failure(found, PARITY) is None, found
    described = [
        {"sequence_id": name, "session": name, "temperature": 0.0, "top_p": 1.0, "top_k": 0}
        for name, _, _ in written
    ]
    predicted = float(replay(head, nano_r1, store, described, depth=K).steps_RK[:, K - 1].sum())
    print(f"{parity_in_words(found)}, steps {predicted} {steps}")
    assert predicted == pytest.approx(steps, rel=0.01)  # dflash has 0.6 %
    tokens = sum(len(answer) - 1 for answer in answers)
    assert tokens / steps > LEAST[kind_name]
