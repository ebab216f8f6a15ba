"""Which logged grammars are sent with a held-out request."""

import json

from datasets import Dataset

from outrider.eval.bench.grammars import sendable_grammars
from outrider.serving.config import EngineConfig, TargetConfig

DIGITS = json.dumps({"regex": "[0-9]+"})
SCHEMA = json.dumps({"json": {"type": "object"}})
BROKEN = json.dumps({"regex": "[0-9"})


def test_grammars_that_vllm_compiles_are_sent(nano_r1):
    rows = {"a": DIGITS, "b": "", "c": BROKEN, "d": SCHEMA}
    heldout = Dataset.from_dict({"prompt_text": [*rows], "grammar": [*rows.values()]})
    target = TargetConfig(model=str(nano_r1))
    assert sendable_grammars(heldout, target, EngineConfig()) == {"a": DIGITS, "d": SCHEMA}


def test_without_grammars_vllm_is_not_loaded(tmp_path):
    heldout = Dataset.from_dict({"prompt_text": ["a"], "grammar": [""]})
    assert sendable_grammars(heldout, TargetConfig(model=str(tmp_path)), EngineConfig()) == {}
