"""The MTP layer: a decoder layer over [next embedding ; hidden state].

    x_i = eh_proj( [ enorm(E(t_{i+1})) ; hnorm(h_i) ] )     embedding first; zero at position 0
    u_i = norm(block(x_i))                                  post-norm
    q_{i+2} = softmax(W u_i)

The next depth reads u_i or block(x_i), as the engine does for the target's architecture
(`Layer.feeds_normed`). E and W are the target's frozen embedding and head (`TargetEnds`).

    speculator, ends = load_mtp(target_dir), load_target_ends(target_dir)
    _, states = speculator.unroll(ends, batch, depth=4)

Shapes: N tokens, A heads, D dims of a key, V dims of a value, H hidden; "..." leading dimensions.
"""

import torch
from torch import Tensor, nn

from outrider.speculators.checkpoints.architectures import layer_of
from outrider.speculators.heads import DraftHead, TargetEnds
from outrider.speculators.kinds.drafter import ChainDrafter
from outrider.speculators.layers.attention import Config, RMSNorm
from outrider.speculators.layers.decoder_layer import DecoderLayer


class MTPSpeculator(ChainDrafter):
    """Two norms, a 2H-to-H projection, one decoder layer, the final norm."""

    def __init__(self, config: Config, frozen_experts: bool = False):
        super().__init__()
        self.width = config["hidden_size"]
        self.feeds_normed = layer_of(config).feeds_normed
        self.used_experts = config["num_experts_per_tok"] / config["n_routed_experts"]
        self.enorm = RMSNorm(self.width, config["rms_norm_eps"])
        self.hnorm = RMSNorm(self.width, config["rms_norm_eps"])
        self.eh_proj = nn.Linear(2 * self.width, self.width, bias=False)
        self.block = DecoderLayer(config, config["num_hidden_layers"], frozen_experts)
        self.norm = RMSNorm(self.width, config["rms_norm_eps"])
        self.softmax_scale = self.block.self_attn.softmax_scale

    def head(self, ends: TargetEnds) -> DraftHead:
        """The target's head over the whole vocabulary."""
        return DraftHead(ends.lm_head_VH)

    def first_state(self, inputs_NX: Tensor) -> Tensor:
        """The state that depth 0 reads: the target's own."""
        return inputs_NX

    def inputs(self, embedding: Tensor, state: Tensor, position: Tensor) -> Tensor:
        """Block input from E(t_{i+1}) [..., H], state [..., H], position [...]."""
        # As in the engine, before enorm: torch.where(positions == 0, 0, embeds).
        embedding = embedding.masked_fill(position[..., None] == 0, 0)
        # The embedding comes first, as in the weights (vLLM 0.32: deepseek_mtp.py:127).
        return self.eh_proj(torch.cat([self.enorm(embedding), self.hnorm(state)], dim=-1))

    def project(self, x_NH: Tensor, position_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys [A, N, D], values [A, N, V]."""
        return self.block.project(x_NH, position_N)

    def finish_layer(self, x_NH: Tensor, attended_ANV: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the next depth's state and the head's input."""
        out_NH = self.block.finish_layer(x_NH, attended_ANV)
        u_NH = self.norm(out_NH)
        # vLLM feeds back the normed state for DeepSeek (deepseek_mtp.py:144) and the unnormed one
        # for GLM-4.5 (glm4_moe_mtp.py:127).
        return (u_NH if self.feeds_normed else out_NH), u_NH
