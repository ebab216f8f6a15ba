"""Names of an EAGLE-3 head's tensors in its two layouts. No torch.

checkpoint_names({"layers.0.hidden_norm.weight": ..., "d2t": ...})   # by the plain name
"""

from collections.abc import Iterable

EMBEDDING = "embed_tokens.weight"
"""A copy of the target's embedding, which public heads ship: neither read nor written."""

D2T, T2D = "d2t", "t2d"

MAPS = frozenset({D2T, T2D})
"""The draft vocabulary: integers that are not trained."""

LAYER, LAYER_OF_SPECULATORS = "midlayer.", "layers.0."

DERIVED = ".rotary_emb.inv_freq"
"""Rotary frequencies that some conversions store: they follow from config.json and are not read."""


def checkpoint_names(stored: Iterable[str]) -> dict[str, str]:
    """The stored name of each of the head's tensors, by its name in the plain layout."""
    found = {}
    for name in stored:
        plain = name.removeprefix("model.")
        if plain.startswith(LAYER_OF_SPECULATORS):
            plain = LAYER + plain.removeprefix(LAYER_OF_SPECULATORS)
        if plain != EMBEDDING and not plain.endswith(DERIVED):
            found[plain] = name
    return found
