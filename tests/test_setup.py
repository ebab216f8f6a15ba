"""requirements/setup.sh in a scratch checkout, with local folders for all package indexes.

The script is the real one. Its packages are stand-ins of a few bytes: `torch`, `extra`, and a `uv`
that starts the real uv. Each records where it came from.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from uv import find_uv_bin

import outrider

ROOT = Path(__file__).parents[1]
UV_VERSION = "1.0"
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


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_index(folder: Path, *packages: tuple[str, str]) -> str:
    """The file:// address of a simple index whose packages have the folder's name as origin."""
    for name, version in packages:
        project = folder / name
        project.mkdir(parents=True)
        code = START_UV.format(path=find_uv_bin()) if name == "uv" else ""
        wheel = write_wheel(project, name, version, folder.name, code)
        digest = sha256(wheel)
        link = f'<a href="{wheel.name}#sha256={digest}">{wheel.name}</a>'
        (project / "index.html").write_text(link)
    return folder.as_uri()


def write_pins(path: Path, package: str, wheel: Path) -> None:
    path.write_text(f"{package} \\\n    --hash=sha256:{sha256(wheel)}\n")


def write_checkout(root: Path) -> None:
    """A scratch checkout with setup.sh, no GPU, and pins of what the indexes have."""
    places = root.parent
    write_index(places / "general", ("uv", UV_VERSION), ("torch", "1.0"), ("extra", "2.0"))
    write_index(places / "pytorch", ("torch", "1.0+cpu"), ("extra", "2.0"))
    (places / "nvidia-smi").write_text("#!/bin/sh\nexit 1\n")
    (places / "nvidia-smi").chmod(0o755)
    requirements = root / "requirements"
    requirements.mkdir(parents=True)
    for name in ("setup.sh", "local_wheels.py"):
        shutil.copy(ROOT / "requirements" / name, requirements)
    general = places / "general"
    [uv] = (general / "uv").glob("*.whl")
    [extra] = (general / "extra").glob("*.whl")
    [torch] = (places / "pytorch" / "torch").glob("*.whl")
    write_pins(requirements / "uv.txt", f"uv=={UV_VERSION}", uv)
    write_pins(requirements / "cpu.txt", "extra==2.0", extra)
    write_pins(requirements / "torch-cpu.txt", "torch==1.0+cpu", torch)
    (requirements / "build.txt").write_text("")
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "backend.py").write_text(BACKEND)
    write_wheel(root, "checkout", "1.0", "checkout")


def set_up(root: Path, pytorch: str, **variables: str) -> subprocess.CompletedProcess[str]:
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
        **variables,
    }
    return subprocess.run(
        ["sh", "requirements/setup.sh"],
        cwd=root, env=environment, text=True, capture_output=True, timeout=120,
    )  # fmt: skip


def origin(root: Path, name: str) -> str:
    """Where the installed package `name` came from."""
    [path] = (root / ".venv").glob(f"lib/python*/site-packages/{name}.py")
    return path.read_text().split("'")[1]


def test_torch_comes_from_pytorch_and_where_it_is_nowhere_the_fix_is_named(tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    write_checkout(root)
    without = write_index(tmp_path / "without", ("extra", "2.0"))
    done = set_up(root, without)
    assert done.returncode == 1
    assert f"torch==1.0+cpu could not be installed from {without}" in done.stderr
    assert "PIP_FIND_LINKS" in done.stderr and "PIP_EXTRA_INDEX_URL" in done.stderr
    assert not (root / ".venv" / ".outrider-setup").exists()

    pytorch = (tmp_path / "pytorch").as_uri()
    done = set_up(root, pytorch)
    assert done.returncode == 0, done.stderr
    _, notice, _ = done.stdout.splitlines()
    assert "torch==1.0+cpu" in notice and pytorch in notice
    # PyTorch's index has other packages too. They come from the general index all the same.
    assert origin(root, "torch") == "pytorch"
    assert origin(root, "extra") == "general"
    assert origin(root, "checkout") == "checkout"

    again = set_up(root, pytorch)
    assert (again.returncode, again.stdout) == (0, "")


def test_another_file_under_a_pinned_version_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    write_checkout(root)
    pytorch = (tmp_path / "pytorch").as_uri()
    # An index in addition to the general one is searched first.
    other = write_index(tmp_path / "other", ("extra", "2.0"))
    done = set_up(root, pytorch, PIP_EXTRA_INDEX_URL=other)
    assert done.returncode == 1
    assert "serves another file for extra==2.0 than requirements/cpu.txt lists" in done.stderr
    assert not list((root / ".venv").glob("lib/python*/site-packages/extra.py"))


def test_a_local_wheel_that_differs_is_named_and_taken_only_if_accepted(tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    write_checkout(root)
    pytorch = (tmp_path / "pytorch").as_uri()
    folder = tmp_path / "wheels"
    folder.mkdir()
    local = write_wheel(folder, "torch", "1.0+cpu", "local")
    done = set_up(root, pytorch, PIP_FIND_LINKS=str(folder))
    assert done.returncode == 1
    assert f"{local} (SHA-256 {sha256(local)})" in done.stderr
    assert "requirements/torch-cpu.txt" in done.stderr
    assert "ACCEPT_LOCAL_WHEELS=1" in done.stderr

    # With the pinned file on an index too, that one is installed.
    extra = write_wheel(folder, "extra", "2.0", "local")
    done = set_up(root, pytorch, PIP_FIND_LINKS=str(folder), ACCEPT_LOCAL_WHEELS="1")
    assert done.returncode == 0, done.stderr
    assert f"not verified, since ACCEPT_LOCAL_WHEELS is 1: {local}" in done.stdout
    assert str(extra) not in done.stdout
    assert origin(root, "torch") == "local"
    assert origin(root, "extra") == "general"


def test_a_script_next_to_the_clone_imports_the_package(tmp_path: Path) -> None:
    """The clone's folder has the package's name; a file that is added there needs no set-up."""
    (tmp_path / "outrider").symlink_to(ROOT)
    script = tmp_path / "mine.py"
    names = ["outrider.cli.main", "outrider.live.local"]
    script.write_text(
        "import importlib.util, outrider\n"
        "print(outrider.__version__)\n"
        f"for name in {names}: print(importlib.util.find_spec(name).origin)\n"
    )
    done = subprocess.run([sys.executable, script], cwd=tmp_path, text=True, capture_output=True)
    assert done.returncode == 0, f"{done.stderr}; run `make setup`"
    version, *origins = done.stdout.splitlines()
    assert version == outrider.__version__
    assert [Path(path) for path in origins] == [ROOT / "cli/main.py", ROOT / "live/local.py"]
