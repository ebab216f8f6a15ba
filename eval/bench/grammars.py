"""Grammars that the customer's requests had, to send them as in production.

    grammars = sendable_grammars(heldout, target, engine)       # {rendered prompt: grammar}

Without its grammar, a request is answered by other text, whose acceptance and speed are not the
customer's. vLLM 0.32's /v1/completions takes a grammar as `structured_outputs`
(entrypoints/openai/completion/protocol.py).
"""

from collections.abc import Mapping

from datasets import Dataset

from outrider.serving.config import EngineConfig, TargetConfig
from outrider.speculators.checkpoints.layout import read_target_config

Grammars = Mapping[str, str]
"""Rendered prompt -> its request's grammar, as JSON of one field of StructuredOutputsParams."""


def sendable_grammars(heldout: Dataset, target: TargetConfig, engine: EngineConfig) -> Grammars:
    """Returns the grammar of each prompt that was logged with one that vLLM compiles.

    The server would refuse a request with another one. Of several for one prompt, the first counts.
    """
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
