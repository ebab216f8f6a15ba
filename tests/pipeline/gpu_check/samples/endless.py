"""A check that starts a process and exceeds its limit."""

import subprocess
import sys
import time
from pathlib import Path

from outrider.pipeline.gpu_check.check import Figures


def on_cpu(folder: Path) -> Figures:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(child.pid, flush=True)
    time.sleep(600)
    return {}
