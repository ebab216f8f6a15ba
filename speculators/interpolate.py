"""Averages base and custom speculator, weight by weight, as a directory that can be served.

    interpolate(base_dir, "runs/NAME/speculator", share=0.5, out_dir="runs/NAME/half")

Each weight is (1 - share) base + share custom. Fine-tuned weights averaged with those they started
from often keep most of the gain on the customer's traffic and lose less on other traffic
(arXiv:2109.01903), and no training is repeated.
"""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from outrider.common.errors import OutriderError
from outrider.common.files import publish
from outrider.speculators.kinds import trainable_kind_of
from outrider.speculators.kinds.protocol import Origin, TrainableKind


def interpolate(base_dir: Path, custom_dir: Path, share: float, out_dir: Path) -> None:
    """Publishes the mixture in the precision of `base_dir` (the target, or a speculator).

    `share` 0 is the base and 1 the custom speculator, byte for byte. Equal weights keep their
    bytes. Others are averaged in float32 and rounded once, to FP8 blocks where the base has them.
    """
    if not 0 <= share <= 1:
        raise OutriderError(
            f"a share of {share} of the custom speculator: it lies between 0 (the base) and 1"
            " (the custom one)"
        )
    kind = trainable_kind_of(custom_dir)
    if trainable_kind_of(base_dir) is not kind:
        raise OutriderError(
            f"{custom_dir} is {kind.in_words}, but the base in {base_dir} is not: two kinds"
            " cannot be averaged"
        )
    if share == 1:
        with publish(Path(out_dir)) as temporary:
            temporary.mkdir()
            weights = sorted(Path(custom_dir).glob("*.safetensors*"))
            for file in (Path(custom_dir) / "config.json", *weights):
                shutil.copyfile(file, temporary / file.name)
    else:
        origin = Origin(base_dir, base_dir)
        kind.write(_mixed(kind, base_dir, custom_dir, share), origin, out_dir)


def _mixed(
    kind: TrainableKind, base_dir: Path, custom_dir: Path, share: float
) -> Iterator[tuple[str, Tensor]]:
    pairs = itertools.zip_longest(kind.tensors(base_dir), kind.tensors(custom_dir))
    for one, other in pairs:
        if one is None or other is None or one[0] != other[0] or one[1].shape != other[1].shape:
            raise OutriderError(
                f"{custom_dir}: not a speculator of the same target as the base in {base_dir}:"
                f" {_named(other)}, in the base {_named(one)}"
            )
        (name, base), (_, custom) = one, other
        same = share == 0 or torch.equal(base, custom)
        yield name, base if same else torch.lerp(base, custom, share)


def _named(found: tuple[str, Tensor] | None) -> str:
    return f"{found[0]} of shape {tuple(found[1].shape)}" if found else "no tensor"
