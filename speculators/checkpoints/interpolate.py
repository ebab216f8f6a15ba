"""Between the base speculator and the custom one: (1 - share) base + share custom, weight by weight, as a directory that is served.

    interpolate(target_dir, "runs/NAME/speculator", share=0.5, out_dir="runs/NAME/half")

Fine-tuned weights averaged with those they started from often keep most of the gain on the customer's traffic and lose less on other
traffic (arXiv:2109.01903), and cost nothing to try: no step of training is repeated.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from outrider.common.errors import OutriderError
from outrider.common.files import publish
from outrider.speculators.checkpoints.layout import read_layout
from outrider.speculators.checkpoints.mtp_checkpoint import read_mtp_tensors, write_mtp


def interpolate(base_dir: Path, custom_dir: Path, share: float, out_dir: Path) -> None:
    """Publishes the mixture in the precision of `base_dir` (the target, or a speculator's directory).

    `share` 0 is the base and 1 the custom speculator, byte for byte. What both have in common stays as it is. In float32, then rounded
    once, to FP8 blocks where those are the base's.
    """
    if not 0 <= share <= 1:
        raise OutriderError(
            f"a share of {share} of the custom speculator: it lies between 0 (the base) and 1 (the custom one)"
        )
    base, custom = (read_layout(directory) for directory in (base_dir, custom_dir))
    if (missing := base.mtp_suffixes() ^ custom.mtp_suffixes()) or base.prefix != custom.prefix:
        raise OutriderError(
            f"{custom_dir}: not a speculator of the target whose base stands in {base_dir}:"
            f" {', '.join(sorted(missing)[:5]) or custom.prefix} is in one of them only"
        )
    if share == 1:
        with publish(Path(out_dir)) as temporary:
            temporary.mkdir()
            for file in (
                custom.directory / "config.json",
                *sorted(custom.directory.glob("*.safetensors*")),
            ):
                shutil.copyfile(file, temporary / file.name)
    else:
        write_mtp(_mixed(base_dir, custom_dir, share), base_dir, out_dir)


def _mixed(base_dir: Path, custom_dir: Path, share: float) -> Iterator[tuple[str, Tensor]]:
    pairs = zip(read_mtp_tensors(base_dir), read_mtp_tensors(custom_dir), strict=True)
    for (suffix, base), (_, custom) in pairs:
        if base.shape != custom.shape:
            raise OutriderError(
                f"{custom_dir}: {suffix} has shape {tuple(custom.shape)}, in {base_dir} {tuple(base.shape)}"
            )
        same = share == 0 or torch.equal(base, custom)
        yield suffix, base if same else torch.lerp(base, custom, share)
