"""Parameters, memory and FLOPs of an EAGLE-3 head, from its config.json alone.

    size = EagleSize(EagleShape.read(config, target_config, path))
    size.total, size.parts

The shapes are those of eagle3/layer.py, counted by hand. Tests compare them with the module. No
weights and no torch. FLOPs are counted as in mtp/size.py.
"""

import dataclasses
from collections.abc import Sequence

from outrider.speculators.kinds.eagle3.activations import EagleActivations
from outrider.speculators.kinds.eagle3.shape import EagleShape
from outrider.speculators.kinds.protocol import Device, RowShape, TrainedParameters


@dataclasses.dataclass(frozen=True)
class EagleSize:
    """Parameters by part, memory and FLOPs."""

    shape: EagleShape

    @property
    def vocab(self) -> int:
        """Tokens of the target's vocabulary."""
        return self.shape.vocab

    @property
    def hidden(self) -> int:
        """Width of the states that the head reads."""
        return self.shape.hidden

    @property
    def parts(self) -> dict[str, int]:
        """Parameters by part."""
        s = self.shape
        norms = 4 * s.hidden
        norms += s.states * (s.norm_before_fc + s.fc_norm)
        return {
            "fc": s.states * s.hidden,
            "attention": self._attention,
            "mlp": 3 * s.intermediate * s.hidden,
            "norms": norms,
            "lm_head": self.own_head,
        }

    @property
    def total(self) -> int:
        """Parameters of the head."""
        return sum(self.parts.values())

    @property
    def ends(self) -> int:
        """Values of the target's embedding and head, which are read and never trained."""
        return 2 * self.shape.vocab * self.shape.target_hidden

    @property
    def own_head(self) -> int:
        """Values of the rows that are trained."""
        return self.shape.drafts * self.shape.hidden

    @property
    def state_values(self) -> int:
        """The teacher's state and the auxiliary ones."""
        return self.shape.target_hidden + self.shape.states

    def trained(self, what: TrainedParameters = "all", lora_rank: int = 0) -> int:
        """Every parameter."""
        return self.total

    def frozen(self, what: TrainedParameters = "all") -> int:
        """None."""
        return 0

    def largest_trained(self, what: TrainedParameters = "all") -> int:
        """Values of the largest tensor."""
        s = self.shape
        attention = max(out * into for out, into in self._matrices)
        return max(s.states * s.hidden, s.intermediate * s.hidden, self.own_head, attention)

    def largest_repeated(self, what: TrainedParameters = "all") -> int:
        """Of attention and MLP: the rows' gradient comes from the loss, in one piece."""
        s = self.shape
        return max(s.intermediate * s.hidden, *(out * into for out, into in self._matrices))

    @property
    def used_once(self) -> int:
        """fc and the norms before it."""
        s = self.shape
        return s.states * (s.hidden + s.norm_before_fc + s.fc_norm)

    def activations(
        self,
        row: RowShape,
        depth: int,
        value_bytes: int,
        device: Device,
        what: TrainedParameters,
        lora_rank: int,
    ) -> EagleActivations:
        """What the unroll of a row keeps for backward."""
        return EagleActivations(self.shape, row, depth, value_bytes, device)

    def replay_values(self, row: RowShape, depth: int) -> int:
        """Keys, values, states of a row, and the widest moment of the MLP."""
        s = self.shape
        heads = s.heads * (2 * s.key_dim + s.value_dim)
        keys_and_values = heads * (row.tokens + (depth - 1) * row.anchors)
        states = 2 * depth * row.anchors * s.hidden + 6 * row.tokens * s.hidden
        return keys_and_values + states + row.tokens * s.states + row.anchors * 4 * s.intermediate

    def gathered_values(self, what: TrainedParameters, depth: int) -> int:
        """ZeRO-3 gathers matrices as they are needed; autograd keeps the newest gathering."""
        return self.total

    def step_flops(self, depth: int, lengths: Sequence[int], anchors: Sequence[int]) -> float:
        """Depth 0 projects every token, for its keys; everything else runs for anchors alone."""
        s = self.shape
        tokens, chains = sum(lengths), sum(anchors)
        # An anchor attends to length / 2 keys on average: scores (D) and values (V).
        pairs = sum(
            count * (length - count / 2) for length, count in zip(lengths, anchors, strict=True)
        )
        into = sum(out * width for out, width in self._matrices[:-1])
        after = self._matrices[-1][0] * self._matrices[-1][1] + 3 * s.hidden * s.intermediate
        layer = (
            tokens * (s.states * s.hidden + into)
            + (depth - 1) * chains * into
            + depth * chains * after
            + depth * pairs * s.heads * (s.key_dim + s.value_dim)
        )
        # The teacher forward once, the trained rows forward and backward at each depth.
        heads = chains * (s.vocab * s.target_hidden + 3 * depth * self.own_head)
        return 2.0 * (3 * layer + heads)

    @property
    def _matrices(self) -> list[tuple[int, int]]:
        """(outputs, inputs) of attention's matrices; the output projection is the last."""
        s = self.shape
        into = 2 * s.hidden
        query = s.heads * s.key_dim
        output = (s.hidden, s.heads * s.value_dim)
        if s.latent is None:
            keys = (s.kv_heads * s.head_dim, into)
            return [(query, into), keys, keys, output]
        q_rank = s.latent["q_lora_rank"]
        queries = [(query, into)] if q_rank is None else [(q_rank, into), (query, q_rank)]
        latent = [
            (s.kv_rank + s.rope_dim, into),
            (s.heads * (s.nope_dim + s.value_dim), s.kv_rank),
        ]
        return [*queries, *latent, output]

    @property
    def _attention(self) -> int:
        """Its matrices, and the inner norms of DeepSeek's."""
        s = self.shape
        norms = 0 if s.latent is None else (s.latent["q_lora_rank"] or 0) + s.kv_rank
        return norms + sum(out * into for out, into in self._matrices)
