"""Executes the RUN lines of the Dockerfile in an empty environment, without Docker.

python -m tools.dockerfile              # the stage `server`, offline
python -m tools.dockerfile train        # and the stage `train`, which needs a package index

The environment is a new one that reads this one's packages, as vLLM's image has vLLM; `/opt` is a
folder in it, with a copy of the checkout. The image itself is not built.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def run_lines(dockerfile: str, last_stage: str) -> list[str]:
    """The commands of all RUN lines up to the end of a stage."""
    lines = []
    stages = []
    for line in dockerfile.replace("\\\n", " ").splitlines():
        if stage := re.match(r"FROM \S+ AS (\w+)", line):
            if stages[-1:] == [last_stage]:
                break
            stages.append(stage[1])
        elif line.startswith("RUN "):
            lines.append(line.removeprefix("RUN "))
    if stages[-1:] != [last_stage]:
        raise SystemExit(f"{last_stage}: no such stage; the Dockerfile has {', '.join(stages)}")
    return lines


def ignored_names(text: str) -> list[str]:
    """Patterns for shutil of the names that .dockerignore leaves out."""
    return [line.removeprefix("**/") for line in text.splitlines() if line]


def prepared(folder: Path) -> Path:
    """Makes an environment in `folder` and copies the checkout; returns the environment's bin."""
    venv.create(folder / "env", with_pip=True)
    python = str(folder / "env" / "bin" / "python3")
    # Python 3.11 adds an old one, which would hide the image's.
    subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "setuptools"], check=True)
    packages = {"base": str(folder / "env"), "platbase": str(folder / "env")}
    site = Path(sysconfig.get_path("purelib", vars=packages))
    # These packages are found after the environment's own.
    (site / "image.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    ignored = ignored_names((ROOT / ".dockerignore").read_text(encoding="utf-8"))
    shutil.copytree(ROOT, folder / "opt" / "outrider", ignore=shutil.ignore_patterns(*ignored))
    return folder / "env" / "bin"


def main(last_stage: str = "server") -> None:
    """Executes the lines in order; ends with the status of one that fails."""
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="image-") as scratch:
        folder = Path(scratch)
        commands = prepared(folder)
        environment = os.environ | {"PATH": f"{commands}:{os.environ['PATH']}"}
        environment.pop("PYTHONPATH", None)
        for line in run_lines(dockerfile, last_stage):
            print(f"RUN {line}", flush=True)
            command = line.replace("/opt/", f"{folder}/opt/")
            done = subprocess.run(
                ["sh", "-c", command], cwd=folder / "opt" / "outrider", env=environment
            )
            if done.returncode:
                raise SystemExit(f"status {done.returncode}: RUN {line}")


if __name__ == "__main__":
    main(*sys.argv[1:])
