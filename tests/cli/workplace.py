"""A folder with a log of screenings and a recipe for it."""

from pathlib import Path
from typing import Any

import yaml

from tests.data.logs import pair, screenings, write_log


def write_workplace(
    folder: Path, target: Path, changes: dict[str, Any], count: int = 40, **sections: Any
) -> Path:
    """log.jsonl, one session per row with these further changes, and mine.yaml; the folder."""
    rows = [
        pair(
            *each,
            request__metadata__session_id=f"s-{index}",
            response__created=1_700_000_000 + 60 * index,
            response__id=f"c-{index}",
            **changes,
        )
        for index, each in enumerate(screenings(count))
    ]
    write_log(folder / "log.jsonl", rows)
    recipe = {"target": {"model": str(target)}, "traffic": {"path": "log.jsonl"}, **sections}
    (folder / "mine.yaml").write_text(yaml.safe_dump(recipe))
    return folder
