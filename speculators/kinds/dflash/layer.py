"""The DFlash head as a module, computed as vLLM 0.32 does (qwen3_dflash.py).

    context j <= i            key and value of hidden_norm(fc(a_j)), position j, no query
    slot 0 at anchor i        token t_{i+1}, position i + 1
    slot s = 1 .. K           the mask token, position i + 1 + s
    u_{i,s}                   one layer over the slots; q_{i+1+s} = softmax(W_D u_{i,s})

Every slot attends to the context up to i and to all K + 1 slots. So a draft depends on the number
of slots, and an unroll of `depth` drafts matches an engine that was started with K = depth. No
draft is read, so for a given K, drafts depend only on the anchor. Slot 0 drafts nothing; in a
one-layer head, only its key and value are needed.

    r_s = x_s + attention(input_layernorm(x))     queries and keys are normed per head, then rotated
    u_s = norm(r_s + mlp(post_attention_layernorm(r_s)))

Parameters are named as in the plain checkpoint layout. Shapes: as in eagle3/layer.py; K = depth, P
tokens of all sequences, X values of the auxiliary states.
"""

from torch import Tensor, nn

from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds.eagle3.layer import StoredHead
from outrider.speculators.kinds.eagle3.shape import EagleShape
from outrider.speculators.layers.attention import RMSNorm
from outrider.speculators.layers.decoder_layer import GatedMLP
from outrider.speculators.layers.llama_attention import LlamaAttention
from outrider.speculators.unroll import Slots, merge_attention, unroll_row


class DFlashHead(StoredHead):
    """One layer over a block of slots, with its own head rows."""

    first = 1
    """The first slot that drafts."""

    def __init__(self, shape: EagleShape, target_ids_D: Tensor | None):
        super().__init__(shape, target_ids_D)
        self.fc = nn.Linear(shape.states, shape.hidden, bias=False)
        self.hidden_norm = RMSNorm(shape.hidden, shape.norm_eps)
        self.layers = nn.ModuleList([BlockLayer(shape)])
        self.norm = RMSNorm(shape.hidden, shape.norm_eps)

    def unroll(self, ends: TargetEnds, slots: Slots, depth: int) -> tuple[Tensor, list[Tensor]]:
        """Drafts from every anchor with a block of `first` + depth slots."""
        inputs_BTX = slots.inputs_BTX
        token_ids_BT = slots.token_ids_BT
        row = unroll_row(slots.sequence_BT, slots.anchor_BT, inputs_BTX.device)
        anchors_N = row.anchors_N
        if not len(anchors_N):
            return anchors_N, [inputs_BTX.new_zeros(0, self.shape.hidden, dtype=ends.dtype)] * depth
        layer: BlockLayer = self.layers[0]  # type: ignore[assignment]
        attention = layer.self_attn
        position = slots.position_BT.flatten()
        known_NH = ends.embed(token_ids_BT.flatten()[anchors_N + 1])
        mask_1H = ends.embed(token_ids_BT.new_full((1,), self.shape.mask_token or 0))

        # The target's states enter as keys and values only, normed after `fc` (vLLM 0.32:
        # qwen3_dflash.py, `precompute_and_store_context_kv`).
        context_PH = self.hidden_norm(self.fc(inputs_BTX.flatten(0, 1)[row.slots_P].to(ends.dtype)))
        tables_P = attention.tables(position[row.slots_P])
        key_APD = attention.apply_rotary(attention.keys(context_PH), tables_P)
        value_APD = attention.values(context_PH)
        normed_NH = layer.input_layernorm(known_NH)
        normed_1H = layer.input_layernorm(mask_1H)
        count = self.first + depth
        tables = [attention.tables(position[anchors_N] + 1 + s) for s in range(count)]
        # All mask slots have the same input: one key, rotated to each position, serves all anchors.
        mask_key_G1D = attention.keys(normed_1H)
        keys = [
            attention.apply_rotary(attention.keys(normed_NH), tables[0]),
            *(attention.apply_rotary(mask_key_G1D, rotation) for rotation in tables[1:]),
        ]
        values = [attention.values(normed_NH), *[attention.values(normed_1H)] * (count - 1)]
        states = []
        scale = attention.softmax_scale
        for s in range(self.first, count):
            x_NH, normed = (mask_1H, normed_1H) if s else (known_NH, normed_NH)
            q_AND = attention.apply_rotary(attention.queries(normed), tables[s])
            prefix_ANV, log_sum_exp_AN = row.attend_prefix(q_AND, key_APD, value_APD, scale)
            # Every slot attends to all slots of its block, also later ones: the block is not
            # causal.
            attended_ANV = merge_attention(
                prefix_ANV=prefix_ANV,
                log_sum_exp_AN=log_sum_exp_AN,
                q_AND=q_AND,
                keys=keys,
                values=values,
                scale=scale,
            )
            states.append(self.norm(layer.finish_layer(x_NH, attended_ANV)))
        return anchors_N, states


class BlockLayer(nn.Module):
    """A Qwen3 decoder layer."""

    def __init__(self, shape: EagleShape):
        super().__init__()
        hidden = shape.hidden
        eps = shape.norm_eps
        self.input_layernorm = RMSNorm(hidden, eps)
        self.self_attn = LlamaAttention(
            hidden=hidden,
            heads=shape.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.head_dim,
            rope=shape.rope,
            into=hidden,
            norm_eps=eps,
        )
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.mlp = GatedMLP(hidden, shape.intermediate)

    def finish_layer(self, x_NH: Tensor, attended_AND: Tensor) -> Tensor:
        """The residual stream after the layer, for inputs [N or 1, H]."""
        residual_NH = x_NH + self.self_attn.project_output(attended_AND)
        return residual_NH + self.mlp(self.post_attention_layernorm(residual_NH))
