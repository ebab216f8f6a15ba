"""Names of an MTP layer's tensors in a checkpoint, without torch.

    layer = MTPTensors(read_layout(directory))
    layer.suffixes      # {"eh_proj.weight", ...}, without `model.layers.61.`

DeepSeek stores the layer as `model.layers.{num_hidden_layers}.*`, one tensor for each expert.
"""

import dataclasses

from outrider.speculators.checkpoints.layout import CheckpointLayout

SHARED_WITH_TARGET = ("embed_tokens.weight", "shared_head.head.weight")
"""Copies of the target's embedding and head that DeepSeek ships: neither read nor written."""

DERIVED = ".rotary_emb.inv_freq"
"""Rotary frequencies that some conversions store: they follow from config.json and are not read."""


@dataclasses.dataclass(frozen=True)
class MTPTensors:
    """The MTP layer of one checkpoint, by name."""

    layout: CheckpointLayout

    @property
    def prefix(self) -> str:
        """Prefix of the layer's tensor names."""
        return layer_prefix(self.layout.config)

    @property
    def suffixes(self) -> set[str]:
        """The layer's tensors without the prefix: scales included, shared copies left out."""
        found = {
            name.removeprefix(self.prefix)
            for name in self.layout.weight_map
            if name.startswith(self.prefix)
        }
        return {name for name in found if name not in SHARED_WITH_TARGET and not is_derived(name)}

    @property
    def names(self) -> set[str]:
        """The same with the prefix."""
        return {self.prefix + suffix for suffix in self.suffixes}


def layer_prefix(config: dict[str, object]) -> str:
    """Prefix of the layer's tensor names: it follows the target's last layer."""
    return f"model.layers.{config['num_hidden_layers']}."


def is_derived(name: str) -> bool:
    """True for a stored tensor that follows from config.json."""
    return name.endswith(DERIVED)


def is_shared(name: str) -> bool:
    """True for a copy of the target's embedding or head, under any prefix."""
    return name.endswith(SHARED_WITH_TARGET)
