"""Recipes and traffic that come with the package.

shipped_recipes()      # ["document_extraction", "r1/resume_screening", ...]
"""

from pathlib import Path

SHIPPED = Path(__file__).resolve().parents[1]
EMBEDDED_TRAFFIC = SHIPPED / "nano_r1" / "traffic"


def shipped_recipes() -> list[str]:
    """Names of the shipped recipes, such as `resume_screening` and `r1/resume_screening`."""
    paths = SHIPPED.glob("**/*.yaml")
    return sorted(str(path.relative_to(SHIPPED).with_suffix("")) for path in paths)
