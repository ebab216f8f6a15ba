"""Parameters and FLOPs of an MTP layer, from a target's config.json alone.

    size = mtp_size(read_json(target / "config.json"))
    size.total, size.routed_experts, size.trained("non_routed")      # R1: 11.6 B, 11.3 B, 336 M

The shapes are those of layers/deepseek_layer.py and mtp/layer.py, counted by hand. Tests compare
them with the modules. No weights and no torch.

FLOPs are those of the matrix products, two for each multiply-add: forward once, and backward twice
where weights are trained. The frozen head counts once forward for the target, and forward and
backward for each draft. Recomputation and padding do not count (PaLM, arXiv:2204.02311,
appendix B).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from outrider.common.errors import OutriderError
from outrider.speculators.kinds.mtp.activations import DENSE_EXPERTS, MTPActivations
from outrider.speculators.kinds.mtp.widths import MTPWidths
from outrider.speculators.kinds.protocol import Device, RowShape, TrainedParameters

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
class MTPSize(MTPWidths):
    """Parameters by part, memory and FLOPs, of the widths."""

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
    def eh_proj(self) -> int:
        """The projection of embedding and state to the layer's input."""
        return 2 * self.hidden * self.hidden

    @property
    def norms(self) -> int:
        """enorm, hnorm, the layer's two norms and the final one."""
        return 5 * self.hidden

    @property
    def parts(self) -> dict[str, int]:
        """The parts above by name."""
        names = ("attention", "routed_experts", "shared_experts", "router", "eh_proj", "norms")
        return {name: getattr(self, name) for name in names}

    @property
    def total(self) -> int:
        """Parameters of the layer."""
        return sum(self.parts.values())

    @property
    def ends(self) -> int:
        """Values of the target's embedding and head, which are read and never trained."""
        return 2 * self.vocab * self.hidden

    @property
    def own_head(self) -> int:
        """None: it drafts with the target's."""
        return 0

    @property
    def state_values(self) -> int:
        """The layer reads the state that the teacher reads, so one is stored."""
        return self.hidden

    @property
    def largest(self) -> int:
        """Values of the largest tensor in training: experts stacked, gate and up in one."""
        inner = self.hidden if self.q_rank is None else self.q_rank
        attention = (
            self.heads * self.value_dim * self.hidden,
            inner * self.heads * (self.nope_dim + self.rope_dim),
            self.kv_rank * self.heads * (self.nope_dim + self.value_dim),
        )
        experts = 2 * self.experts * self.expert_intermediate * self.hidden
        return max(*attention, experts, self.eh_proj, self.shared_intermediate * self.hidden)

    def largest_trained(self, what: TrainedParameters = "all") -> int:
        """The same over the trained tensors, adapters aside."""
        return self.largest if what == "all" else dataclasses.replace(self, experts=0).largest

    def largest_repeated(self, what: TrainedParameters = "all") -> int:
        """Every depth uses every tensor."""
        return self.largest_trained(what)

    @property
    def used_once(self) -> int:
        """None."""
        return 0

    def trained(self, what: TrainedParameters = "all", lora_rank: int = 0) -> int:
        """Parameters that the optimizer holds.

        An expert's adapters have rank x (inputs + outputs) for gate-and-up and for down.
        """
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
        """Parameters of the layer that the optimizer does not hold."""
        return 0 if what == "all" else self.routed_experts

    def activations(
        self,
        row: RowShape,
        depth: int,
        value_bytes: int,
        device: Device,
        what: TrainedParameters,
        lora_rank: int,
    ) -> MTPActivations:
        """What the unroll of a row keeps for backward."""
        return MTPActivations(self, row, depth, value_bytes, device, what, lora_rank)

    def replay_values(self, row: RowShape, depth: int) -> int:
        """Keys, values and states of a row, and the widest moment of the MLP."""
        heads = self.heads * (2 * self.nope_dim + self.rope_dim + self.value_dim)
        keys_and_values = heads * (row.tokens + (depth - 1) * row.anchors)
        if self.experts and self.experts <= DENSE_EXPERTS:
            mlp = 4 * self.experts * self.expert_intermediate
        else:
            mlp = self.experts_per_token * (2 * self.hidden + 3 * self.expert_intermediate)
        states = 2 * depth * row.anchors * self.hidden + 4 * row.tokens * self.hidden
        return keys_and_values + states + row.anchors * mlp

    def gathered_values(self, what: TrainedParameters, depth: int) -> int:
        """ZeRO-3 gathers the experts at each depth; autograd's views keep each gathering."""
        if what != "all":
            return 0
        return self.routed_experts * depth + (self.total - self.routed_experts)

    def step_flops(self, depth: int, lengths: Sequence[int], anchors: Sequence[int]) -> float:
        """Depth 0 projects every token, for its keys; everything else runs for anchors alone."""
        tokens, chains = sum(lengths), sum(anchors)
        # An anchor attends to length / 2 keys on average: scores (D) and values (V).
        pairs = sum(
            count * (length - count / 2) for length, count in zip(lengths, anchors, strict=True)
        )
        layer = (
            tokens * self._projection_products
            + (depth - 1) * chains * self._projection_products
            + depth * chains * self._products_after_attention
            + depth * pairs * self.heads * (self.nope_dim + self.rope_dim + self.value_dim)
        )
        head = self.hidden * self.vocab
        return 2.0 * (3 * layer + chains * head * (1 + 2 * depth))

    @property
    def _projection_products(self) -> int:
        """Multiply-adds of a token's input, queries, keys and values."""
        query = self.heads * (self.nope_dim + self.rope_dim)
        queries = self.hidden * query
        if self.q_rank is not None:
            queries = self.q_rank * (self.hidden + query)
        latent = self.hidden * (self.kv_rank + self.rope_dim)
        keys_and_values = self.kv_rank * self.heads * (self.nope_dim + self.value_dim)
        return 2 * self.hidden**2 + queries + latent + keys_and_values

    @property
    def _products_after_attention(self) -> int:
        """Multiply-adds of a token after attention: output, router, its experts, the shared MLP."""
        output = self.heads * self.value_dim * self.hidden
        shared = 3 * self.hidden * self.shared_intermediate
        routed = 3 * self.hidden * self.expert_intermediate * self.experts_per_token
        return output + shared + (self.hidden * self.experts + routed if self.experts else 0)


def mtp_size(config: Mapping[str, Any], source: object = "config.json") -> MTPSize:
    """From a Hugging Face config of a DeepSeek-V3 architecture.

    An `OutriderError` names `source` and the keys that are missing.
    """
    missing = [key for key in NEEDED if key not in config]
    if missing:
        raise OutriderError(
            f"{source}: no {', '.join(missing)}, so this is no config of a DeepSeek-V3"
            " architecture; point target.model at a checkpoint with a multi-token prediction layer"
            " (DeepSeek-V3 and R1 have one)"
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
