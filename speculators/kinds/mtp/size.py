"""Parameters and activations of an MTP layer, from a target's config.json alone.

size = mtp_size(read_json(target / "config.json"))
"""

from collections.abc import Mapping
from typing import Any

from outrider.common.errors import OutriderError
from outrider.speculators.size import DrafterSize, meta_shapes


def mtp_size(config: Mapping[str, Any], source: object = "config.json") -> DrafterSize:
    """From a Hugging Face config of a DeepSeek-V3 architecture.

    An `OutriderError` names `source` and the first missing key.
    """
    from outrider.speculators.kinds.mtp.layer import MTPSpeculator
    from outrider.speculators.layers.deepseek_layer import DeepseekArch, Experts

    try:
        arch = DeepseekArch.from_config(config)
    except KeyError as missing:
        raise OutriderError(
            f"{source}: no {missing.args[0]}, so this is no config of a DeepSeek-V3 architecture;"
            " point target.model at a checkpoint with a multi-token prediction layer (DeepSeek-V3"
            " and R1 have one)"
        ) from None
    hidden, width = arch.hidden, arch.expert_intermediate
    keys, values = arch.heads * (arch.nope_dim + arch.rope_dim), arch.heads * arch.value_dim
    shapes = meta_shapes(lambda: MTPSpeculator(arch))
    ranks = (arch.q_rank or 0) + arch.kv_rank
    routed_to, copied = 0, 0
    if arch.layers < arch.dense_layers:
        mlp = 4 * arch.dense_intermediate
    else:
        # The router's input in float32, and the shared experts.
        mlp = 2 * hidden + 4 * arch.shared_experts * width
        if arch.experts <= Experts.DENSE_UP_TO:
            mlp, copied = mlp + 5 * arch.experts * width, arch.experts * width * hidden
        else:
            routed_to = arch.experts_per_token
            mlp += routed_to * (2 * hidden + 4 * width)
    projected = 4 * hidden + 4 * ranks + keys + values
    return DrafterSize(
        shapes=shapes,
        vocab=arch.vocab,
        hidden=hidden,
        state_values=hidden,
        heads=arch.heads,
        key_values=keys,
        value_values=values,
        first=4 * hidden + projected,
        deeper=6 * hidden + projected + keys + values,
        mlp=mlp,
        copied_weights=copied,
        routed_to=routed_to,
        used_experts=arch.experts_per_token / arch.experts,
        recomputes=True,
    )
