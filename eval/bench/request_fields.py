"""Fields of the customer's requests that an evaluation repeats, besides prompt and sampling.

    fields = request_fields(heldout, target, engine, salted=True)   # {rendered prompt: fields}

Without its grammar, a request is answered by other text, whose acceptance and speed are not the
customer's. Without its tenant's `cache_salt`, it finds other responses in a lookup's history, and
other prompts in the prefix cache.
"""

import json
from collections.abc import Mapping
from typing import Any

from datasets import Dataset

from outrider.serving.config import EngineConfig, TargetConfig
from outrider.speculators.checkpoints.layout import read_target_config
from outrider.speculators.lookup_history import salt_of

RequestFields = Mapping[str, Mapping[str, Any]]
"""Rendered prompt -> further fields of its request to /v1/completions
(vllm/entrypoints/openai/completion/protocol.py in vLLM 0.32)."""


def request_fields(
    heldout: Dataset, target: TargetConfig, engine: EngineConfig, *, salted: bool
) -> RequestFields:
    """Returns the grammar, and if `salted` the `cache_salt`, of each prompt that has any.

    A grammar that vLLM does not compile is left out, because the server would refuse the request.
    Of several requests with one prompt, the first with a grammar or a tenant counts.
    """
    fields: dict[str, dict[str, Any]] = {}
    for text, grammar in _compiling(heldout, target, engine).items():
        fields[text] = {"structured_outputs": json.loads(grammar)}
    if salted:
        for text, tenant in zip(heldout["prompt_text"], heldout["tenant"], strict=True):
            salt = salt_of(tenant)
            if salt:
                fields.setdefault(text, {}).setdefault("cache_salt", salt)
    return fields


def _compiling(heldout: Dataset, target: TargetConfig, engine: EngineConfig) -> dict[str, str]:
    """The grammar of each prompt that was logged with one that vLLM compiles."""
    logged: dict[str, str] = {}
    for text, grammar in zip(heldout["prompt_text"], heldout["grammar"], strict=True):
        if grammar:
            logged.setdefault(text, grammar)
    if not logged:
        return {}
    from outrider.serving.vllm_hooks.grammar_masks import GrammarMasks

    directory = target.directory()
    masks = GrammarMasks(
        directory, read_target_config(directory)["vocab_size"], engine.structured_outputs
    )
    compiling = {grammar for grammar in set(logged.values()) if masks.compiles(grammar)}
    return {text: grammar for text, grammar in logged.items() if grammar in compiling}
