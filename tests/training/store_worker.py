"""A worker that reads one of the sources of stores.py, named by an environment variable.

OUTRIDER_TEST_STORE=BugInRank1 python -m tests.training.store_worker SPEC.json
"""

import os
import sys
from pathlib import Path
from unittest.mock import patch

from outrider.training.distributed import worker

STORE = "OUTRIDER_TEST_STORE"
"""Launchers pass variables with this prefix on to ranks."""

STORE_WORKER = "tests.training.store_worker"


def main(spec_path: Path) -> int:
    """Runs the rank; without the variable, it is the worker itself."""
    name = os.environ.get(STORE)
    if name is None:
        return worker.main(spec_path)
    from tests.training import stores

    store = getattr(stores, name)
    with patch.object(worker, "open_source", lambda spec: store.open(spec.features_dir)):
        return worker.main(spec_path)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
