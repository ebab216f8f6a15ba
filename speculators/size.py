"""How many parameters an MTP layer has, by part, from a target's config.json alone: no weights and no torch.

    size = mtp_size(read_json(target / "config.json"))
    size.total, size.routed_experts, size.trained("non_routed")      # R1: 11.6 B, 11.3 B, 336 M

The shapes are those of deepseek.py and mtp.py, counted by hand; tests compare them with the modules.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from outrider.common.errors import OutriderError

TrainedParameters = Literal["all", "non_routed", "lora"]
"""Which of the layer's weights are trained: all, all but the routed experts, or these by low-rank adapters."""

NEEDED = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "intermediate_size",
    "first_k_dense_replace",
    "moe_intermediate_size",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
)
"""Keys of config.json that fix the size."""


@dataclasses.dataclass(frozen=True)
class MTPSize:
    """Parameters by part, and the widths that they come from (names as in deepseek.py)."""

    vocab: int
    hidden: int
    heads: int
    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int
    experts: int
    experts_per_token: int
    expert_intermediate: int
    shared_intermediate: int
    """Of the shared experts together; of the whole MLP where the layer is dense."""

    @property
    def attention(self) -> int:
        """Multi-head latent attention, its two inner norms included."""
        query = self.heads * (self.nope_dim + self.rope_dim)
        queries = self.hidden * query
        if self.q_rank is not None:
            queries = self.q_rank * (self.hidden + 1 + query)
        keys = self.hidden * (self.kv_rank + self.rope_dim) + self.kv_rank
        keys += self.kv_rank * self.heads * (self.nope_dim + self.value_dim)
        return queries + keys + self.heads * self.value_dim * self.hidden

    @property
    def routed_experts(self) -> int:
        """Gate, up and down projections of all routed experts."""
        return 3 * self.experts * self.expert_intermediate * self.hidden

    @property
    def shared_experts(self) -> int:
        """The MLP that every token passes."""
        return 3 * self.shared_intermediate * self.hidden

    @property
    def router(self) -> int:
        """Its weights; the correction bias is not trained and no parameter."""
        return self.experts * self.hidden

    @property
    def eh_proj(self) -> int:
        """From embedding and state to the layer's input."""
        return 2 * self.hidden * self.hidden

    @property
    def norms(self) -> int:
        """enorm, hnorm, the layer's two and the final one."""
        return 5 * self.hidden

    @property
    def parts(self) -> dict[str, int]:
        """All of the above by name."""
        names = ("attention", "routed_experts", "shared_experts", "router", "eh_proj", "norms")
        return {name: getattr(self, name) for name in names}

    @property
    def total(self) -> int:
        """Parameters of the layer."""
        return sum(self.parts.values())

    @property
    def ends(self) -> int:
        """Values of the target's embedding and head together, which are read and never trained."""
        return 2 * self.vocab * self.hidden

    @property
    def largest(self) -> int:
        """Values of the largest tensor, as training holds it: experts stacked, gate and up in one."""
        inner = self.hidden if self.q_rank is None else self.q_rank
        attention = (
            self.heads * self.value_dim * self.hidden,
            inner * self.heads * (self.nope_dim + self.rope_dim),
            self.kv_rank * self.heads * (self.nope_dim + self.value_dim),
        )
        experts = 2 * self.experts * self.expert_intermediate * self.hidden
        return max(*attention, experts, self.eh_proj, self.shared_intermediate * self.hidden)

    @property
    def largest_non_routed(self) -> int:
        """The same without the routed experts."""
        return dataclasses.replace(self, experts=0).largest

    def trained(self, what: TrainedParameters = "all", lora_rank: int = 0) -> int:
        """Parameters that the optimizer sees: adapters have rank x (inputs + outputs) for gate-and-up and for down of an expert."""
        if what == "all":
            return self.total
        adapters = 0
        if what == "lora":
            outputs = (self.hidden + 2 * self.expert_intermediate) + (
                self.expert_intermediate + self.hidden
            )
            adapters = self.experts * lora_rank * outputs
        return self.total - self.routed_experts + adapters

    def frozen(self, what: TrainedParameters = "all") -> int:
        """Parameters of the layer that it does not see."""
        return 0 if what == "all" else self.routed_experts


def mtp_size(config: Mapping[str, Any], source: object = "config.json") -> MTPSize:
    """From a Hugging Face config of a DeepSeek-V3 architecture; an `OutriderError` names `source` and the keys that it lacks."""
    missing = [key for key in NEEDED if key not in config]
    if missing:
        raise OutriderError(
            f"{source}: no {', '.join(missing)}, so this is no config of a DeepSeek-V3 architecture; point target.model at a checkpoint "
            "with a multi-token prediction layer (DeepSeek-V3 and R1 have one)"
        )
    dense = config["num_hidden_layers"] < config["first_k_dense_replace"]
    shared = config["moe_intermediate_size"] * config["n_shared_experts"]
    return MTPSize(
        vocab=config["vocab_size"],
        hidden=config["hidden_size"],
        heads=config["num_attention_heads"],
        q_rank=config.get("q_lora_rank"),
        kv_rank=config["kv_lora_rank"],
        nope_dim=config["qk_nope_head_dim"],
        rope_dim=config["qk_rope_head_dim"],
        value_dim=config["v_head_dim"],
        experts=0 if dense else config["n_routed_experts"],
        experts_per_token=config["num_experts_per_tok"],
        expert_intermediate=config["moe_intermediate_size"],
        shared_intermediate=config["intermediate_size"] if dense else shared,
    )
