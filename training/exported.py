"""Acceptance of the published weights, against the weights that were trained.

exported = exported_profile(validation, kind, out_dir, spec.target_dir, ends, depth)
print(export_line(base, trained, exported, blocks))

The difference is what the stored precision costs: FP8 blocks round trained weights, and a merged
adapter is rounded to the experts' dtype.
"""

from pathlib import Path
from typing import Any

from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds.protocol import TrainableKind
from outrider.training.distributed.accelerator import ChainUnroll
from outrider.training.validation import Validation


def exported_profile(
    validation: Validation,
    kind: TrainableKind,
    directory: Path,
    target_dir: Path,
    ends: TargetEnds,
    depth: int,
) -> dict[str, Any]:
    """Validation acceptance of a directory, computed in training's precision."""
    device, dtype = ends.lm_head_VH.device, ends.lm_head_VH.dtype
    unroll = ChainUnroll(kind.load(directory, target_dir, dtype, device), ends, depth).eval()
    return validation.profile(unroll)


def export_line(
    base: dict[str, Any],
    trained: dict[str, Any],
    exported: dict[str, Any],
    blocks: tuple[int, int] | None,
) -> str:
    """One line on what the export costs in acceptance."""
    first, before, after = (
        profile["acceptance_length"][-1] for profile in (base, trained, exported)
    )
    form = "as the target ships its weights"
    if blocks is not None:
        form = f"in FP8 blocks of {blocks[0]} x {blocks[1]}"
    acceptance = " ".join(f"{rate:.3f}" for rate in exported["acceptance"])
    line = (
        f"exported {form}: acceptance {acceptance}  acceptance length {after:.3f} at"
        f" K={len(exported['acceptance'])}, {after / before - 1:+.2%} from the trained weights'"
        f" {before:.3f}"
    )
    return line + (f"; that is below the base speculator's {first:.3f}" if after < first else "")
