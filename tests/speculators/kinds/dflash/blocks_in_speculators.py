"""Drafts of a DFlash head in PyPI's `speculators`, in a separate environment; no Outrider.

    python blocks_in_speculators.py TWIN STATES.safetensors LOGITS.safetensors

Its attention is eager here, with the mask written out; its default, flex attention, is for GPUs. It
is made for training and draws its anchors at random: here they are given.
"""

import sys

import torch
from safetensors.torch import load_file, save_file

from speculators import SpeculatorModel, SpeculatorModelConfig


def main(twin: str, states: str, out: str) -> None:
    config = SpeculatorModelConfig.from_pretrained(twin)
    config.transformer_layer_config._attn_implementation = "eager"
    model = SpeculatorModel.from_pretrained(twin, config=config).float().eval()
    given = load_file(states)
    tokens_T = given["tokens"]
    inputs_TX = given["inputs"]
    known_N = given["known"]
    tokens = len(tokens_T)
    anchors = len(known_N)
    slots = model.block_size

    def full_mask(*_args, **_kwargs):
        """The states before a block's known token, and the block itself, in both directions."""
        block_Q = torch.arange(anchors).repeat_interleave(slots)
        before_QT = torch.arange(tokens) < known_N[block_Q][:, None]
        allowed = torch.cat([before_QT, block_Q[:, None] == block_Q], dim=1)
        mask = torch.zeros(allowed.shape).masked_fill(~allowed, float("-inf"))[None, None]
        return mask, None, known_N, torch.ones(anchors, dtype=torch.bool)

    model._build_attention_mask = full_mask
    width = config.transformer_layer_config.hidden_size
    with torch.no_grad():
        _, logits, *_ = model._backbone_forward(
            inputs_TX[None],
            tokens_T[None],
            torch.ones(1, tokens),
            torch.zeros(1, tokens, width),
            torch.zeros(1, tokens, dtype=torch.long),
            max_anchors=anchors,
        )
    drafts_NKD = logits.view(anchors, slots, -1)[:, 1:].contiguous()
    save_file({"logits": drafts_NKD, "d2t": model.d2t.contiguous()}, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
