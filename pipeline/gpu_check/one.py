"""One check in this process: `python -m outrider.pipeline.gpu_check.one MODULE PLACE OUT.json`."""

import importlib
import signal
import sys
import tempfile
import traceback
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.pipeline.gpu_check.check import Figures


def main(module: str, place: str, result: Path) -> None:
    """Writes the check's figures, or why it failed."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    figures: Figures = {}
    failure = ""
    try:
        check = getattr(importlib.import_module(module), f"on_{place}")
        with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
            figures = check(Path(folder))
    except OutriderError as error:
        failure = str(error)
    except Exception as error:
        traceback.print_exc()
        failure = f"{type(error).__name__}: {error}"
    write_json(result, {"figures": figures, "failure": failure})


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]))
