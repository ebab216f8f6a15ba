"""What other packages add to Outrider, through entry points.

    [project.entry-points."outrider.kinds"]         # pyproject.toml of the other package
    frozen_rows = "research_kind:FrozenRows"

    plugins("outrider.kinds", taken=("mtp", "eagle3"))

A package that is installed next to Outrider is used in every process that runs Outrider, engines
and ranks too. docs/how-to/try-a-kind-or-a-loss.md has an example.
"""

import importlib.metadata
from collections.abc import Collection
from typing import Any

from outrider.common.errors import OutriderError


def plugins(group: str, taken: Collection[str]) -> dict[str, Any]:
    """Loads a group's entry points by name; none may have a `taken` name."""
    loaded: dict[str, Any] = {}
    for point in importlib.metadata.entry_points(group=group):
        package = point.dist.name if point.dist else point.module
        where = f"package {package}: entry point {group}, {point.name} = {point.value}"
        if point.name in taken or point.name in loaded:
            raise OutriderError(f"{where}: the name is taken; choose another")
        try:
            loaded[point.name] = point.load()
        except (ImportError, AttributeError) as error:
            raise OutriderError(f"{where}: {error}; correct or uninstall the package") from error
    return loaded
