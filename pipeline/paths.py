"""Checks the recipe's target and log paths. Imports neither torch nor scipy.

    check_paths(load_recipe("mine.yaml").recipe)      # an OutriderError names a wrong one

The commands run this before their slow imports, so a mistyped path is reported within a second.
"""

from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.recipe.shipped import EMBEDDED_TRAFFIC
from outrider.pipeline.stages.sources import path_list


def check_paths(recipe: Recipe) -> None:
    """Checks that the target is a checkpoint or hub id, and that local logs exist."""
    recipe.target.local_directory()
    check_log_paths(recipe)


def check_log_paths(recipe: Recipe) -> None:
    """Checks that every local path of the log exists."""
    for key in ("path", "general"):
        for path in path_list(getattr(recipe.traffic, key)):
            if "://" in path or Path(path).exists() or any(Path("/").glob(path.lstrip("/"))):
                continue
            names = sorted(log.name for log in EMBEDDED_TRAFFIC.glob("*.jsonl.gz"))
            embedded = [f"nano_r1/{name.removesuffix('.jsonl.gz')}" for name in names]
            raise OutriderError(
                f"traffic.{key} = {path!r}: no such file or folder, neither relative to the recipe"
                " nor to the current directory; give a log, a folder of logs or a URL, in the"
                f" recipe or as traffic.{key}=... on the command line (included:"
                f" {', '.join(embedded) or 'none'})"
            )
