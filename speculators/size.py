"""Size of a drafter: its parameters, and what a token of its unroll costs.

    size = kind.size(config, target_config)
    size.total, size.trained("non_routed"), size.parts      # R1: 11.6 B, 336 M, {...}

Parameters are those of the module, built on the meta device: no weights, no memory. Activations are
rules over the widths of a layer, one line per part of the unroll; tests compare them with what
autograd keeps. A rule counts values: a tensor that is kept counts its width, and the input of an
RMSNorm three times (float32, and bf16 before the weight). What is below 1 % of a layer at R1's
widths does not count: rotary tables, log-sum-exps, weights of a chain's own keys.

FLOPs are those of the matrix products, two for each multiply-add: forward once, and backward twice
where weights are trained. A frozen head counts once forward for the target, and forward and
backward for each draft. Recomputation and padding do not count (PaLM, arXiv:2204.02311, appendix
B).
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import nn

Device = Literal["cpu", "cuda"]
"""Where memory is planned for: a CPU attends densely, a GPU by flex attention."""

TrainedParameters = Literal["all", "non_routed", "lora"]
"""Trained weights: all, all but the routed experts, or these with low-rank adapters."""

EXPERTS = ".experts."

PROJECTIONS = ("eh_proj", "q_proj", "k_proj", "v_proj", "q_a_proj", "q_b_proj", "kv_a_", "kv_b_")
"""Parts of the names of the matrices before attention, Llama's and DeepSeek's."""


@dataclasses.dataclass(frozen=True)
class RowShape:
    """The shape of one training row that decides its memory."""

    tokens: int
    """Slots that hold a token."""
    anchors: int
    """Slots from which a chain starts."""
    pairs: int
    """(anchor, token) pairs within a sequence, summed: the size of attention over the prefix."""
    largest_pairs: int
    """The pairs of the largest sequence."""

    @classmethod
    def of_sequences(cls, sequences: Iterable[tuple[int, int]]) -> "RowShape":
        """The row of sequences given as (tokens, anchors)."""
        listed = list(sequences)
        pairs = [tokens * anchors for tokens, anchors in listed] or [0]
        return cls(sum(t for t, _ in listed), sum(a for _, a in listed), sum(pairs), max(pairs))

    @classmethod
    def full(cls, tokens: int) -> "RowShape":
        """The largest row of `tokens` slots: one sequence that is all response."""
        return cls.of_sequences([(tokens, tokens)])


@dataclasses.dataclass(frozen=True)
class DrafterSize:
    """Parameters by name, and values that the unroll of a row keeps for backward."""

    shapes: Mapping[str, tuple[int, ...]]
    """Shape of every parameter by the module's name for it."""
    vocab: int
    """Tokens of the target's vocabulary."""
    hidden: int
    """Width of the states that the draft head reads."""
    state_values: int
    """Stored values of one token in a training row: the teacher's state and the inputs."""
    heads: int
    key_values: int
    """Values of all heads' keys of a token; a query has as many."""
    value_values: int
    """Values of all heads' values of a token."""
    first: int
    """Values that depth 0 keeps of each token of a row."""
    deeper: int
    """Values that each later depth keeps of an anchor until attention."""
    mlp: int
    """Values that the MLP or the experts keep of an anchor at each depth."""
    copied_weights: int = 0
    """Values of weights that every depth copies."""
    routed_to: int = 0
    """Experts that a token is sorted to; 0 where every token goes through all of them."""
    used_experts: float = 0.0
    """Share of the routed experts whose products a token needs."""
    once: tuple[str, ...] = ()
    """Starts of the names of parameters that only depth 0 uses."""
    recomputes: bool = False
    """Whether training can compute each depth again in backward."""
    into: tuple[str, ...] = PROJECTIONS
    """Parts of the names of the matrices before attention."""
    chained: bool = True
    """Whether each later depth multiplies with them for every anchor."""

    @property
    def total(self) -> int:
        """Parameters of the drafter."""
        return sum(map(math.prod, self.shapes.values()))

    @property
    def parts(self) -> dict[str, int]:
        """Parameters by part of the layer."""
        found: dict[str, int] = {}
        for name, shape in self.shapes.items():
            part = next((part for word, part in PARTS if word in name), name.partition(".")[0])
            found[part] = found.get(part, 0) + math.prod(shape)
        return found

    @property
    def ends(self) -> int:
        """Values of the target's embedding and head, which are read and never trained."""
        return 2 * self.vocab * self.hidden

    @property
    def own_head(self) -> int:
        """Values of a trained head; 0 where it drafts with the target's."""
        return self.count("lm_head")

    def count(self, *words: str) -> int:
        """Parameters whose name contains one of the words."""
        return sum(
            math.prod(shape)
            for name, shape in self.shapes.items()
            if any(word in name for word in words)
        )

    def trained(self, what: TrainedParameters = "all", lora_rank: int = 0) -> int:
        """Parameters that the optimizer holds; an expert's adapters have rank x (in + out)."""
        adapters = [shape for name, shape in self.shapes.items() if EXPERTS in name]
        added = lora_rank * sum(count * (out + into) for count, out, into in adapters)
        return self.total - self.frozen(what) + added * (what == "lora")

    def frozen(self, what: TrainedParameters = "all") -> int:
        """Parameters of the drafter that the optimizer does not hold."""
        return 0 if what == "all" else self.count(EXPERTS)

    def largest(self, what: TrainedParameters = "all") -> int:
        """Values of the largest trained tensor whose gradients of several depths add up."""
        return max(
            math.prod(shape)
            for name, shape in self.shapes.items()
            if not name.startswith(("lm_head", *self.once))
            and (what == "all" or EXPERTS not in name)
        )

    @property
    def used_once(self) -> int:
        """Trained values that only depth 0 uses: their gradients come last in backward."""
        return sum(math.prod(s) for name, s in self.shapes.items() if name.startswith(self.once))

    @property
    def finish(self) -> int:
        """Values that each depth keeps of an anchor: attention's output, two norms, the MLP."""
        return self.key_values + self.value_values + 7 * self.hidden + self.mlp

    def step_flops(self, depth: int, lengths: Sequence[int], anchors: Sequence[int]) -> float:
        """FLOPs of a training step over sequences of these lengths and numbers of anchors.

        Depth 0 projects every token, for its keys; everything else runs for anchors alone.
        """
        tokens, chains = sum(lengths), sum(anchors)
        # An anchor attends to length - count / 2 keys on average: scores and values.
        pairs = sum(n * (length - n / 2) for length, n in zip(lengths, anchors, strict=True))
        states = self.count("fc.weight")
        into = self.count(*self.into)
        routed = self.count(EXPERTS)
        after = self.count("o_proj", ".mlp.") - routed + int(routed * self.used_experts)
        layer = (
            tokens * (states + into)
            + (depth - 1) * chains * into * self.chained
            + depth * chains * after
            + depth * pairs * (self.key_values + self.value_values)
        )
        head = self.vocab * self.hidden
        heads = chains * (head + depth * (3 * self.own_head or 2 * head))
        return 2.0 * (3 * layer + heads)


PARTS = (
    (EXPERTS, "routed_experts"),
    ("norm", "norms"),
    ("self_attn", "attention"),
    ("mlp.gate.", "router"),
    ("mlp", "mlp"),
)
"""(part of a parameter's name, part of the layer); first match, else the name's first word."""


def meta_shapes(build: "Callable[[], nn.Module]") -> dict[str, tuple[int, ...]]:
    """Shapes of the parameters of a module, built on the meta device."""
    import torch

    with torch.device("meta"):
        return {name: tuple(value.shape) for name, value in build().named_parameters()}
