"""Drafts of a head in PyPI's `speculators`, in a separate environment. Imports no Outrider.

    python in_speculators.py TWIN STATES.safetensors DEPTH DRAFTS.safetensors

The library loads the directory with its own loader. To run on a CPU its attention is eager; its
default, flex attention, is for GPUs. Its parallel drafter, which is made for training, draws the
drafts that it computes at random and ends in a loss: here it computes all, and none.
"""

import sys

import torch
from safetensors.torch import load_file, save_file
from speculators.models.peagle import core as parallel

from speculators import SpeculatorModel, SpeculatorModelConfig


def every_slot(seq_length, loss_mask, num_depths, **_):
    """Anchor and depth of each draft: depth after depth, of all anchors with a token there."""
    anchors = [torch.arange(seq_length - depth) for depth in range(num_depths)]
    depths = [torch.full_like(each, depth) for depth, each in enumerate(anchors)]
    return torch.cat(anchors), torch.cat(depths)


def main(twin: str, states: str, depth: int, out: str) -> None:
    config = SpeculatorModelConfig.from_pretrained(twin)
    config.transformer_layer_config._attn_implementation = "eager"
    model = SpeculatorModel.from_pretrained(twin, config=config).float().eval()
    parallel.generate_cod_sample_indices = every_slot
    parallel.compute_metrics = lambda **_: (torch.zeros(()), {})
    seen: list[torch.Tensor] = []
    model.lm_head.register_forward_hook(lambda _module, _inputs, logits: seen.append(logits[0]))
    given = load_file(states)
    found = {}
    for name in sorted(key.removeprefix("tokens.") for key in given if key.startswith("tokens.")):
        tokens_T = given[f"tokens.{name}"].long()
        inputs_TX = given[f"inputs.{name}"].float()
        seen.clear()
        # The state of a position goes with the token after it.
        arguments = {
            "hidden_states": inputs_TX[None, :-1],
            "input_ids": tokens_T[None, 1:],
            "document_ids": torch.zeros(1, len(tokens_T) - 1, dtype=torch.long),
        }
        with torch.no_grad():
            if config.speculators_model_type == "peagle":
                width = config.transformer_layer_config.hidden_size
                final = torch.zeros(1, len(tokens_T) - 1, width)
                model(**arguments, verifier_last_hidden_states=final, num_depths=depth)
                by_depth = seen[0].split([len(tokens_T) - 1 - each for each in range(depth)])
                logits_KTD = torch.nn.utils.rnn.pad_sequence(by_depth, batch_first=True)
            else:
                model(**arguments, ttt_steps=depth)
                logits_KTD = torch.stack(seen)
        found[name] = logits_KTD.log_softmax(-1).contiguous()
    found["d2t"] = model.d2t.contiguous()
    save_file(found, out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4])
