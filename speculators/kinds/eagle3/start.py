"""An EAGLE-3 head as training starts with it: from scratch, or from a base.

    head = start_eagle3(origin, torch.bfloat16, "cpu", seed=0)

From scratch, the rows of the head are the target's own rows of the draft tokens: the last norm
makes the head's states as large as the target's, so drafts have meaning from the first steps.
Matrices are drawn with standard deviation 0.7 / sqrt(inputs), and those that add to the residual
stream with 0.02, so that the layer begins near the identity. The target's own norms are not copied.
"""

import math

import torch
from torch import Tensor

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.draft_vocabulary import chosen_ids
from outrider.speculators.kinds.eagle3.checkpoint import EAGLE3, HeadFormat, load_eagle3
from outrider.speculators.kinds.eagle3.layer import StoredHead
from outrider.speculators.kinds.protocol import Origin

INTO_RESIDUAL = (".self_attn.o_proj.weight", ".mlp.down_proj.weight")


def start_eagle3(
    origin: Origin,
    dtype: torch.dtype,
    device: torch.device | str,
    seed: int,
    form: HeadFormat = EAGLE3,
) -> StoredHead:
    """The base's head, or a new one over the draft vocabulary of the origin's traffic."""
    if origin.base_dir is not None:
        return load_eagle3(origin.base_dir, origin.target_dir, dtype, device, form)
    target_config = read_json(origin.target_dir / "config.json")
    ids_D = draft_ids(origin)
    drafts = target_config["vocab_size"] if ids_D is None else len(ids_D)
    config = form.new_config(target_config, origin.head, drafts)
    shape = form.read_shape(config, target_config, origin.target_dir / "config.json")
    head = form.build(shape, ids_D)
    generator = torch.Generator().manual_seed(seed)
    rows_VH = load_target_ends(origin.target_dir).lm_head_VH
    with torch.no_grad():
        for name, parameter in head.named_parameters():
            if name == "lm_head.weight":
                parameter.copy_(rows_VH if ids_D is None else rows_VH[ids_D])
            elif parameter.dim() > 1:
                std = 0.02 if name.endswith(INTO_RESIDUAL) else 0.7 / math.sqrt(parameter.shape[1])
                parameter.normal_(std=std, generator=generator)
    return head.to(device=device, dtype=dtype)


def draft_ids(origin: Origin) -> Tensor | None:
    """The draft vocabulary [D] by `speculator.head.draft_vocabulary`; None: the target's."""
    wanted = origin.head.draft_vocabulary
    if wanted == "all":
        return None
    if origin.token_counts is None:
        raise OutriderError(
            "speculator.head.draft_vocabulary: no traffic is known to choose the draft vocabulary"
            " from; set it to all, or start from a head (speculator.base)"
        )
    return chosen_ids(origin.token_counts(), wanted)
