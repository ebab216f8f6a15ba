"""Masks of training samples, by the grammars of a run's specification."""

import json
from pathlib import Path

import torch
from transformers import AutoTokenizer

from outrider.common.files import read_json
from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.features import SequenceStates
from outrider.training.config import TrainingConfig
from outrider.training.distributed.spec import SequenceSampling, TrainingSpec
from outrider.training.grammars import masks_of
from outrider.training.packing import TrainingSample
from tests.training.corpus import training_spec

PROMPT = [0, 17, 23]


def specification(nano_r1: Path, folder: Path, **changes: object) -> TrainingSpec:
    names = ["free", "chosen", "unusable", "penalized"]
    spec = training_spec(
        run_dir=folder,
        target_dir=nano_r1,
        features_dir=folder,
        parts={"train": names, "validation": names},
        speculator=SpeculatorConfig(),
        training=TrainingConfig(),
    )
    return spec.model_copy(update=changes)


def test_each_sample_has_the_masks_of_its_own_grammar(nano_r1: Path, tmp_path: Path) -> None:
    target_config = read_json(nano_r1 / "config.json")
    assert masks_of(specification(nano_r1, tmp_path), target_config) is None
    sampling = {
        "free": SequenceSampling(0.6, 0.95, 0),
        "chosen": SequenceSampling(0.6, 0.95, 0, hard=True, grammar=1),
        "unusable": SequenceSampling(0.6, 0.95, 0, hard=True, grammar=0),
        "penalized": SequenceSampling(0.6, 0.95, 0, hard=True),
    }
    grammars = [json.dumps({"choice": ["no"]}), json.dumps({"choice": ["yes", "no"]})]
    spec = specification(nano_r1, tmp_path, sampling=sampling, grammars=grammars)
    # What the ranks read.
    spec = TrainingSpec.model_validate_json(spec.model_dump_json())
    of = masks_of(spec, target_config)
    assert of is not None
    answer = AutoTokenizer.from_pretrained(nano_r1).encode("yes", add_special_tokens=False)
    token_ids = torch.tensor([*PROMPT, *answer, 1], dtype=torch.int32)
    states = SequenceStates(token_ids, len(PROMPT), {})
    found = {name: of(TrainingSample(name, len(token_ids), 2), states) for name in sampling}
    assert [name for name, masks in found.items() if masks is not None] == ["chosen"]
    chosen = found["chosen"]
    assert chosen is not None and len(chosen.index_N) == len(answer) + 1
    # A sample is cut at the length of a row.
    cut = of(TrainingSample("chosen", len(PROMPT) + 1, 2), states)
    assert cut is not None and torch.equal(cut.index_N, chosen.index_N[:1])
