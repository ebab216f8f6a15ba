"""Checks from files alone that a speculator belongs to the target.

    check_speculator(Path("runs/NAME/speculator"), target_dir)     # an OutriderError, or nothing

An engine that gets a speculator of another target, with another vocabulary or with damaged weights
ends in a traceback after minutes, or drafts nonsense silently. Everything is read from the two
config.json and the safetensors headers. Only finiteness, and whether a copied vocabulary equals
the target's, are read from the weights. No torch.
"""

from pathlib import Path

from outrider.common.files import read_json
from outrider.speculators.checkpoints.layout import read_layout
from outrider.speculators.checkpoints.target_fingerprint import check_target
from outrider.speculators.kinds import kind_of


def check_speculator(directory: Path, target_dir: Path) -> None:
    """Raises an `OutriderError` with file, key, value and fix where they do not fit.

    A bundle must also have been made for this very target (target_fingerprint.py).
    """
    directory = Path(directory)
    if (directory / "bundle.json").is_file():
        check_target(read_json(directory / "bundle.json"), directory, target_dir)
    kind_of(directory).check(directory, read_layout(target_dir))
