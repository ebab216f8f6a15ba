"""Size of a drafter: its parameters, and the activations of its unroll.

    size = drafter_size(kind, config, target_config, "config.json")
    size.total, size.num_trained_parameters("non_routed"), size.parts      # R1: 11.6 B, 336 M,
    {...} size.activation_bytes(8192, 8190, depth=3).linear                   # bytes until backward

Both are measured on the meta device, where tensors have shapes but no memory: the module's
parameters by name, and the storages that autograd saves during the unroll.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from outrider.speculators.kinds.protocol import TrainableKind, TrainedParameters
from outrider.speculators.unroll import Slots

if TYPE_CHECKING:
    import torch

    from outrider.speculators.kinds.drafter import Drafter

EXPERTS = ".experts."

PARTS = (
    (EXPERTS, "routed_experts"),
    ("norm", "norms"),
    ("self_attn", "attention"),
    ("mlp.gate.", "router"),
    ("mlp", "mlp"),
)
"""Pairs of (substring of a parameter's name, part of the layer).
The first match is used; without a match, the part is the first component of the name."""


class ActivationBytes(NamedTuple):
    """Bytes that autograd keeps from an unroll until backward, excluding weights."""

    linear: int
    """Storages that grow linearly with the number of tokens; flex attention keeps no others."""
    scores: int
    """Scores, probabilities and masks of dense attention on a CPU."""
    largest_scores: int


@dataclasses.dataclass(frozen=True, eq=False)
class DrafterSize:
    """A drafter's module on the meta device, and the target's widths."""

    drafter: "Drafter"
    vocab: int
    """Number of tokens in the target's vocabulary."""
    hidden: int
    """Width of the target's states."""
    read: int
    """Number of values per token that the drafter reads."""

    @property
    def shapes(self) -> Mapping[str, "torch.Size"]:
        """Shape of every parameter, by its name in the module."""
        return {name: value.shape for name, value in self.drafter.named_parameters()}

    @property
    def total(self) -> int:
        """Number of parameters in the drafter."""
        return sum(map(math.prod, self.shapes.values()))

    @property
    def parts(self) -> dict[str, int]:
        """Number of parameters in each part of the layer."""
        counts: dict[str, int] = {}
        for name, shape in self.shapes.items():
            part = next((part for word, part in PARTS if word in name), name.partition(".")[0])
            counts[part] = counts.get(part, 0) + math.prod(shape)
        return counts

    @property
    def ends(self) -> int:
        """Number of values in the target's embedding and head, which are never trained."""
        return 2 * self.vocab * self.hidden

    @property
    def largest(self) -> int:
        """Number of values in the largest tensor."""
        return max(map(math.prod, self.shapes.values()))

    def num_trained_parameters(self, what: TrainedParameters = "all", lora_rank: int = 0) -> int:
        """Number of parameters that the optimizer holds.

        With `lora`, this includes `lora_rank` x (in + out) for each expert matrix.
        """
        adapters = [shape for name, shape in self.shapes.items() if EXPERTS in name]
        added = lora_rank * sum(count * (out + into) for count, out, into in adapters)
        return self.total - self.num_frozen_parameters(what) + added * (what == "lora")

    def num_frozen_parameters(self, what: TrainedParameters = "all") -> int:
        """Number of the drafter's parameters that the optimizer does not hold."""
        return 0 if what == "all" else self.parts.get("routed_experts", 0)

    def step_flops(self, depth: int, anchors: int) -> float:
        """FLOPs of a training step: 6 per draft for each weight used.

        PaLM's rule (arXiv:2204.02311, appendix B), with 4 instead of 6 for the target's frozen
        head if drafts use it, plus the teacher's forward pass through that head. Attention scores,
        the prompts' keys and recomputation are excluded.
        """
        # A matrix takes 2 FLOPs per weight and token forward and 4 backward; a frozen one 2
        # backward, for the gradient of its input only.
        head = self.vocab * self.hidden
        own_head = self.parts.get("lm_head", 0)
        used = (
            self.total
            - own_head
            - self.num_frozen_parameters("non_routed") * (1 - self.drafter.used_experts)
        )
        return anchors * (6.0 * depth * used + 2.0 * head + depth * (6 * own_head or 4 * head))

    @functools.cache  # noqa: B019 (a size lives as long as its plan)
    def activation_bytes(self, tokens: int, anchors: int, depth: int) -> ActivationBytes:
        """Bytes that autograd keeps from the unroll of one sequence, in bf16.

        The anchors are the last `anchors` tokens before the final two. Each storage is counted
        once. Depths are not recomputed; weights are excluded.
        """
        import torch

        from outrider.speculators.heads import TargetEnds

        dtype = torch.bfloat16  # the only dtype that grouped products support on the meta device
        drafter = self.drafter.to(dtype)
        ours = {parameter.untyped_storage()._cdata for parameter in drafter.parameters()}
        linear: dict[int, Any] = {}
        scores: dict[int, Any] = {}

        def save(tensor: "torch.Tensor") -> "torch.Tensor":
            storage = tensor.untyped_storage()
            if storage._cdata not in ours:
                quadratic = tuple(tensor.shape[-2:]) == (anchors, tokens)
                (scores if quadratic else linear)[storage._cdata] = storage
            return tensor

        sequence_BT = torch.zeros(1, tokens, dtype=torch.long)
        anchor_BT = torch.zeros(1, tokens, dtype=torch.bool)
        anchor_BT[0, tokens - 2 - anchors : tokens - 2] = True
        with torch.device("meta"):
            ends = TargetEnds(*(torch.empty(self.vocab, self.hidden, dtype=dtype) for _ in "EW"))
            token_BT = torch.empty(1, tokens, dtype=torch.long)
            inputs_BTX = torch.empty(1, tokens, self.read, dtype=dtype)
        with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
            drafter.unroll(
                ends,
                Slots(
                    token_ids_BT=token_BT,
                    inputs_BTX=inputs_BTX,
                    sequence_BT=sequence_BT,
                    position_BT=token_BT,
                    anchor_BT=anchor_BT,
                ),
                depth,
            )
        linear_bytes, score_bytes = (
            [storage.nbytes() for storage in tensors.values()] for tensors in (linear, scores)
        )
        return ActivationBytes(sum(linear_bytes), sum(score_bytes), max(score_bytes, default=0))


def drafter_size(
    kind: TrainableKind,
    config: Mapping[str, Any],
    target_config: Mapping[str, Any],
    source: object = "config.json",
) -> DrafterSize:
    """The size of a speculator of `kind` with this config.json.

    Raises an `OutriderError` if `source` (the target's config.json) lacks keys.
    """
    import torch

    with torch.device("meta"):
        drafter = kind.build(config, target_config, source)
    read = kind.features(config, target_config).width
    return DrafterSize(drafter, target_config["vocab_size"], target_config["hidden_size"], read)
