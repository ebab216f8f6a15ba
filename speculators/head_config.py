"""The `speculator.head` section: shape of a head trained from scratch. No torch.

HeadConfig(layers=[2, 8, 13], draft_vocabulary=0.999)
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt

PLANNED_VOCABULARY = 32_000
"""Planned draft vocabulary size if the actual size depends on traffic.
Public heads for vocabularies of 129k and 151k have this size."""


class HeadConfig(BaseModel):
    """Shape of a new head; warm starts keep the base head's shape."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True, frozen=True)

    layers: Literal["auto"] | tuple[PositiveInt, ...] = "auto"
    """States of the target that the head reads.
    A list gives layer numbers of at least 1 in ascending order; the head reads the residual stream
    before each. In a target with L layers, L selects the state after the last layer. `auto`: 2,
    L // 2 and L - 3, vLLM's default for a head that names no layers."""

    layer_type: Literal["auto", "llama", "mla"] = "auto"
    """Attention of the head's layer.
    `llama`: keys and values per head. `mla`: DeepSeek's latent attention with the target's widths.
    vLLM uses one KV cache format for target and head, so `auto` is `mla` if the engine runs the
    target with MLA (R1 on GPUs), otherwise `llama` (VLLM_MLA_DISABLE=1, the default on a CPU)."""

    draft_vocabulary: (
        Literal["all"] | Annotated[int, Field(ge=2)] | Annotated[float, Field(gt=0, lt=1)]
    ) = 0.999
    """Tokens that the head can draft.
    A share below 1: the most frequent tokens that together make up this share of the training
    part's response tokens. An integer of at least 2: that many of the most frequent tokens. `all`:
    the target's vocabulary. A warm start keeps the base's number and chooses the tokens again."""

    rope_theta: Literal["target"] | Annotated[float, Field(gt=0)] = "target"
    """Base of the rotary embedding in Llama's attention.
    `target`: the target's own, without its scaling. MLA always has the target's embedding."""

    def planned_vocabulary(self, vocab: int) -> int:
        """Draft vocabulary size for memory planning, given the target's `vocab`."""
        if self.draft_vocabulary == "all":
            return vocab
        share = isinstance(self.draft_vocabulary, float)
        return min(vocab, PLANNED_VOCABULARY if share else int(self.draft_vocabulary))
