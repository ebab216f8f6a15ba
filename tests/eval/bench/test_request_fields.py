"""Which fields of logged requests are sent with held-out prompts."""

import json

from datasets import Dataset

from outrider.eval.bench.request_fields import request_fields
from outrider.serving.config import EngineConfig, TargetConfig

DIGITS = {"regex": "[0-9]+"}
SCHEMA = {"json": {"type": "object"}}
BROKEN = {"regex": "[0-9"}


def table(rows):
    """A table of prompts with a grammar and a tenant each."""
    return Dataset.from_dict(
        {
            "prompt_text": [text for text, _, _ in rows],
            "grammar": [json.dumps(grammar) if grammar else "" for _, grammar, _ in rows],
            "tenant": [tenant for _, _, tenant in rows],
        }
    )


def test_grammars_that_vllm_compiles_are_sent(nano_r1):
    heldout = table([("a", DIGITS, "x"), ("b", None, "x"), ("c", BROKEN, ""), ("d", SCHEMA, "")])
    target = TargetConfig(model=str(nano_r1))
    assert request_fields(heldout, target, EngineConfig(), salted=False) == {
        "a": {"structured_outputs": DIGITS},
        "d": {"structured_outputs": SCHEMA},
    }
    assert request_fields(heldout, target, EngineConfig(), salted=True) == {
        "a": {"structured_outputs": DIGITS, "cache_salt": "x"},
        "b": {"cache_salt": "x"},
        "d": {"structured_outputs": SCHEMA},
    }


def test_without_grammars_vllm_is_not_loaded(tmp_path):
    target = TargetConfig(model=str(tmp_path))
    # The first tenant of a prompt counts; vLLM refuses the last two names.
    rows = [("a", None, ""), ("a", None, "x"), ("a", None, "y"), ("b", None, "x@y")]
    heldout = table([*rows, ("c", None, "x" * 129)])
    assert request_fields(heldout, target, EngineConfig(), salted=False) == {}
    fields = request_fields(heldout, target, EngineConfig(), salted=True)
    assert fields == {"a": {"cache_salt": "x"}}
