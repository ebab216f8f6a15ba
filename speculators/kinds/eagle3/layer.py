"""The EAGLE-3 head as a module (vLLM 0.32: llama_eagle3.py, deepseek_eagle3.py).

    h_i = fc(a_i)                            a_i: the target's auxiliary states, concatenated
    x_i = [ input_layernorm(E(t_{i+1})) ; hidden_norm(h_i) ]    position i, not zeroed at position 0
    r_i = h_i + attention(x_i)               hidden_norm(h_i) + ... with norm_before_residual
    g_i = r_i + mlp(post_attention_layernorm(r_i))
    u_i = norm(g_i)                          q_{i+2} = softmax(W_D u_i) over the draft vocabulary

The next depth reads the state g_i before the last norm (u_i with norm_output), token t_{i+2} and
position i + 1. With `fc_norm`, every auxiliary state is normed separately before fc; with
`norm_before_fc`, all are normed together. E is the target's embedding; the rows W_D are the head's.

Parameters are named as in the plain checkpoint layout. Shapes: N tokens, A heads, D and V dims of a
key and a value, H hidden, X values of the auxiliary states; in the head's rows, D is the draft
vocabulary.
"""

import torch
from torch import Tensor, nn

from outrider.speculators.heads import DraftHead, TargetEnds
from outrider.speculators.kinds.drafter import ChainDrafter, Drafter
from outrider.speculators.kinds.eagle3.shape import EagleShape
from outrider.speculators.layers.attention import Attention, RMSNorm
from outrider.speculators.layers.decoder_layer import GatedMLP
from outrider.speculators.layers.latent_attention import LatentAttention
from outrider.speculators.layers.llama_attention import LlamaAttention


class StoredHead(Drafter):
    """A drafter with its own layer, head rows and draft vocabulary."""

    shape: EagleShape
    target_ids_D: Tensor | None
    """Target token of each row; None for the target's vocabulary."""
    of_draft_tokens: tuple[str, ...] = ("lm_head.weight",)
    """Parameters with a row for each draft token."""

    def __init__(self, shape: EagleShape, target_ids_D: Tensor | None):
        super().__init__()
        self.shape = shape
        self.width = shape.hidden
        self.lm_head = nn.Linear(shape.hidden, shape.drafts, bias=False)
        # Not persistent, since it is never trained and the checkpoint stores it as offsets.
        self.register_buffer("target_ids_D", target_ids_D, persistent=False)

    def head(self, ends: TargetEnds) -> DraftHead:
        """The head's own rows over its draft vocabulary."""
        return DraftHead(self.lm_head.weight, self.target_ids_D)


class EagleHead(StoredHead, ChainDrafter):
    """One layer over [embedding ; state], with its own head rows."""

    def __init__(self, shape: EagleShape, target_ids_D: Tensor | None):
        super().__init__(shape, target_ids_D)
        eps = shape.norm_eps
        if shape.norm_before_fc:
            self.input_norm = RMSNorm(shape.states, eps)
        if shape.fc_norm:
            self.fc_norm = nn.ModuleList(RMSNorm(shape.target_hidden, eps) for _ in shape.layers)
        self.fc = nn.Linear(shape.states, shape.hidden, bias=False)
        self.midlayer = EagleLayer(shape)
        self.norm = RMSNorm(shape.hidden, eps)
        self.softmax_scale = self.midlayer.self_attn.softmax_scale

    def first_state(self, inputs_NX: Tensor) -> Tensor:
        """The projected auxiliary states."""
        # One norm over all states, or one for each (vLLM 0.32: llama_eagle3.py:405 and 411).
        if self.shape.norm_before_fc:
            inputs_NX = self.input_norm(inputs_NX)
        if self.shape.fc_norm:
            pairs = zip(self.fc_norm, inputs_NX.chunk(len(self.shape.layers), dim=-1), strict=True)
            inputs_NX = torch.cat([norm(state) for norm, state in pairs], dim=-1)
        return self.fc(inputs_NX)

    def inputs(self, embedding: Tensor, state: Tensor, position: Tensor) -> Tensor:
        """[E(t_{i+1}) ; h_i] [N, 2H], unnormed, since the residual needs h_i."""
        return torch.cat([embedding, state], dim=-1)

    def project(self, x_NX: Tensor, position_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys [A, N, D], values [A, N, V]."""
        return self.midlayer.project(x_NX, position_N)

    def finish_layer(self, x_NX: Tensor, attended_ANV: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the next depth's state and the head's input."""
        out_NH = self.midlayer.finish_layer(x_NX, attended_ANV)
        u_NH = self.norm(out_NH)
        # llama_eagle3.py:286: which of the two the next draft reads depends on the checkpoint.
        return (u_NH if self.shape.norm_output else out_NH), u_NH


class EagleLayer(nn.Module):
    """A decoder layer whose attention reads [embedding ; state], 2H wide."""

    self_attn: Attention

    def __init__(self, shape: EagleShape):
        super().__init__()
        self.norm_before_residual = shape.norm_before_residual
        hidden = shape.hidden
        eps = shape.norm_eps
        self.input_layernorm = RMSNorm(hidden, eps)
        self.hidden_norm = RMSNorm(hidden, eps)
        if shape.latent is not None:
            self.self_attn = LatentAttention(shape.latent, 2 * hidden)
        else:
            self.self_attn = LlamaAttention(
                hidden=hidden,
                heads=shape.heads,
                kv_heads=shape.kv_heads,
                head_dim=shape.head_dim,
                rope=shape.rope,
                into=2 * hidden,
            )
        self.post_attention_layernorm = RMSNorm(hidden, eps)
        self.mlp = GatedMLP(hidden, shape.intermediate)

    def project(self, x_NX: Tensor, position_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of [embedding ; state]."""
        # Each half has its own norm (vLLM 0.32: llama_eagle3.py:133).
        embedding_NH, state_NH = x_NX.chunk(2, dim=-1)
        normed_NX = torch.cat(
            [self.input_layernorm(embedding_NH), self.hidden_norm(state_NH)], dim=-1
        )
        return self.self_attn.project(normed_NX, position_N)

    def finish_layer(self, x_NX: Tensor, attended_ANV: Tensor) -> Tensor:
        """The residual stream after the layer, given input and attended values."""
        state_NH = x_NX.chunk(2, dim=-1)[1]
        # llama_eagle3.py:110 and 117: the residual is taken after or before the norm.
        residual_NH = self.hidden_norm(state_NH) if self.norm_before_residual else state_NH
        residual_NH = residual_NH + self.self_attn.project_output(attended_ANV)
        return residual_NH + self.mlp(self.post_attention_layernorm(residual_NH))
