"""The `speculator` section of a recipe: what is trained, from what, and how far it looks ahead.

SpeculatorConfig(depth=4)
"""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from outrider.speculators.kinds import DEFAULT_KIND, KINDS, trainable_names


def _trainable(name: str) -> str:
    if name not in trainable_names():
        known = "can be evaluated, but not trained" if name in KINDS else "is not known"
        raise ValueError(f"{name!r} {known}; kinds that train: {', '.join(trainable_names())}")
    return name


class SpeculatorConfig(BaseModel):
    """The `speculator` section of a recipe."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    kind: Annotated[str, AfterValidator(_trainable)] = DEFAULT_KIND
    """Architecture. `mtp`: the multi-token prediction layer that a DeepSeek-V3/R1 target ships
    behind its last layer."""

    base: str | None = None
    """Directory of the speculator in use today: training starts from it, evaluation compares with
    it, and `training.base_kl` holds the custom one near it. null: the target's own."""

    depth: int = Field(default=4, ge=1, le=16)
    """Draft tokens that the speculator is unrolled to in training and replay; serving may choose
    any K up to it."""

    train: Literal["all", "non_routed", "lora"] = "all"
    """Trained weights. `all`: every weight. `non_routed`: all but the routed experts, which keep
    the target's precision, byte for byte, and take no gradients and no optimizer states (97 % of
    R1's 11.6 B parameters). `lora`: the same, with low-rank adapters on the routed experts, which
    are merged into them at export."""

    lora_rank: int = Field(default=16, ge=1)
    """Rank of the adapters of each expert's projections; with `train: lora` only."""

    lora_alpha: float = Field(default=32.0, gt=0)
    """The adapters' product is scaled by `lora_alpha / lora_rank`; with `train: lora` only."""
