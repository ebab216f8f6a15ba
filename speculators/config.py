"""What kind of speculator is trained, and how far it looks ahead.

SpeculatorConfig(depth=4)
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class SpeculatorConfig(BaseModel):
    """The `speculator` section of a recipe."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    kind: Literal["mtp"] = "mtp"
    """Architecture. `mtp`: the multi-token prediction layer that a DeepSeek-V3/R1 target ships behind its last layer."""

    depth: int = Field(default=4, ge=1, le=16)
    """Draft tokens that the speculator is unrolled to in training and replay; serving may choose any K up to it."""

    train: Literal["all", "non_routed", "lora"] = "all"
    """What of it is trained. `all`: every weight. `non_routed`: all but the routed experts, which stay in the target's own
    precision, byte for byte, and take no gradients and no optimizer states (97 % of R1's 11.6 B parameters). `lora`: the same,
    and low-rank adapters on the routed experts, merged into them at export."""

    lora_rank: int = Field(default=16, ge=1)
    """Rank of the adapters of each expert's projections; with `train: lora` only."""

    lora_alpha: float = Field(default=32.0, gt=0)
    """The adapters' product counts `lora_alpha / lora_rank` times; with `train: lora` only."""
