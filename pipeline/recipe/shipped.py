"""Recipes, traffic and base speculators that come with the package.

shipped_recipes()      # ["document_extraction", "r1/resume_screening", ...]
shipped_heads()        # {"nano_r1/eagle3": Path(...), ...}
"""

from pathlib import Path

SHIPPED = Path(__file__).resolve().parents[2] / "recipes"
EMBEDDED_TRAFFIC = SHIPPED / "nano_r1" / "traffic"
EMBEDDED_TARGET = "target"
"""Folder of an embedded target; its speculators have folders next to it."""


def shipped_recipes() -> list[str]:
    """Names of the shipped recipes, such as `resume_screening` and `r1/resume_screening`.

    Excludes node.yaml files, which contain only what the recipes of a folder share.
    """
    names = (str(path.relative_to(SHIPPED).with_suffix("")) for path in SHIPPED.glob("**/*.yaml"))
    # Files of Ray clusters and of live endpoints are YAML too.
    not_recipes = ("cluster/", "endpoints/")
    return sorted(n for n in names if not n.startswith(not_recipes) and not n.endswith("/node"))


def shipped_heads() -> dict[str, Path]:
    """Directories of speculators for the embedded target, keyed by `speculator.base` name."""
    folders = (path.parent for path in sorted(SHIPPED.glob("nano_r1/*/config.json")))
    return {
        f"nano_r1/{folder.name}": folder for folder in folders if folder.name != EMBEDDED_TARGET
    }
