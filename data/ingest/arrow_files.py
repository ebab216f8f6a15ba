"""Columns of the parts' files (chunks.py)."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa


def columns_of(part: Path, names: Sequence[str]) -> pa.Table:
    """Returns columns of a part, as copies: slices of a mapped file would keep all of it mapped."""
    stored = pa.ipc.open_stream(pa.memory_map(str(part))).read_all().select(names)
    return stored.take(np.arange(len(stored)))
