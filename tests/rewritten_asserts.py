"""Test modules with pytest's rewritten assertions, cached before test processes import them.

Each process would rewrite all of them for itself, 3 s of a core, and where PYTHONDONTWRITEBYTECODE
is set, as in many containers, again in every run.
"""

from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def cache_rewritten(config: pytest.Config, folder: Path) -> int:
    """Rewrites the folder's test modules that have changed; returns how many.

    pytest compares a cached module with its source before it uses it.
    """
    state, written = config.stash[rewrite.assertstate_key], 0
    for path in [*folder.rglob("test_*.py"), *folder.rglob("conftest.py")]:
        cache = rewrite.get_cache_dir(path)
        cached = cache / (path.stem + rewrite.PYC_TAIL)
        if rewrite.try_makedirs(cache) and rewrite._read_pyc(path, cached) is None:
            source_hash, code = rewrite._rewrite_test(path, config)
            written += rewrite._write_pyc(state, code, source_hash, cached)
    return written
