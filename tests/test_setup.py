"""requirements/setup.sh in a scratch checkout, with local folders for all package indexes.

The script is the real one. Its packages are stand-ins of a few bytes: `torch`, `extra`, and a `uv`
that starts the real uv. Each records where it came from.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from uv import find_uv_bin

ROOT = Path(__file__).parents[1]
UV_VERSION = "0.13.8"
PYPROJECT = """\
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
[project]
name = "checkout"
version = "1.0"
"""
BACKEND = """\
import shutil
WHEEL = "checkout-1.0-py3-none-any.whl"
def build_editable(folder, config_settings=None, metadata_directory=None):
    shutil.copy(WHEEL, folder)
    return WHEEL
"""
WHEEL = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
START_UV = "import os, sys\ndef main(): os.execv({path!r}, ['uv', *sys.argv[1:]])\n"


def write_wheel(folder: Path, name: str, version: str, origin: str, code: str = "") -> Path:
    """A wheel of one module that holds `ORIGIN`; with `code`, also a command `name`."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"ORIGIN = {origin!r}\n{code}",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": WHEEL,
    }
    if code:
        files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{name} = {name}:main\n"
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(path, "w") as wheel:
        for file, text in files.items():
            wheel.writestr(file, text)
    return path


def write_index(folder: Path, *packages: tuple[str, str]) -> str:
    """The file:// address of a simple index whose packages have the folder's name as origin."""
    for name, version in packages:
        project = folder / name
        project.mkdir(parents=True)
        code = START_UV.format(path=find_uv_bin()) if name == "uv" else ""
        wheel = write_wheel(project, name, version, folder.name, code)
        (project / "index.html").write_text(f'<a href="{wheel.name}">{wheel.name}</a>')
    return folder.as_uri()


def write_checkout(root: Path) -> None:
    """A scratch checkout with setup.sh."""
    requirements = root / "requirements"
    requirements.mkdir(parents=True)
    shutil.copy(ROOT / "requirements" / "setup.sh", requirements)
    (requirements / "cpu.txt").write_text("extra==2.0\ntorch==1.0+cpu\n")
    (requirements / "overrides-cpu.txt").write_text("torch==1.0+cpu\n")
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "backend.py").write_text(BACKEND)
    write_wheel(root, "checkout", "1.0", "checkout")


def set_up(root: Path, pytorch: str) -> subprocess.CompletedProcess[str]:
    """The script's result, with local folders for all package indexes."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_"))}
    environment = kept | {
        "PATH": f"{root.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHON": sys.executable,
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_INDEX_URL": (root.parent / "general").as_uri(),
        "PYTORCH_CPU_INDEX": pytorch,
        "UV_CACHE_DIR": str(root.parent / "cache"),
        "UV_NO_CONFIG": "1",
        "UV_OFFLINE": "1",
    }
    return subprocess.run(
        ["sh", "requirements/setup.sh"],
        cwd=root, env=environment, text=True, capture_output=True, timeout=120,
    )  # fmt: skip


def test_torch_comes_from_pytorch_and_where_it_is_nowhere_the_fix_is_named(tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    write_checkout(root)
    # No GPU, whatever this machine has.
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    write_index(tmp_path / "general", ("uv", UV_VERSION), ("torch", "1.0"), ("extra", "2.0"))
    without = write_index(tmp_path / "without", ("extra", "2.0"))
    done = set_up(root, without)
    assert done.returncode == 1
    assert f"torch==1.0+cpu could not be installed from {without}" in done.stderr
    assert "PIP_FIND_LINKS" in done.stderr and "PIP_EXTRA_INDEX_URL" in done.stderr
    assert not (root / ".venv" / ".outrider-setup").exists()

    pytorch = write_index(tmp_path / "pytorch", ("torch", "1.0+cpu"), ("extra", "2.0"))
    done = set_up(root, pytorch)
    assert done.returncode == 0, done.stderr
    _, notice, _ = done.stdout.splitlines()
    assert "torch==1.0+cpu" in notice and pytorch in notice
    # PyTorch's index has other packages too. They come from the general index all the same.
    for name, origin in (("torch", "pytorch"), ("extra", "general"), ("checkout", "checkout")):
        [path] = (root / ".venv").glob(f"lib/python*/site-packages/{name}.py")
        assert path.read_text().split("'")[1] == origin

    again = set_up(root, pytorch)
    assert (again.returncode, again.stdout) == (0, "")
