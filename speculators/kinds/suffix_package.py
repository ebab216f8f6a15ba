"""Installs vLLM's suffix lookup: the extension of arctic-inference, without its other parts.

    install_suffix()        # what `outrider doctor --install-suffix` runs; 30 s on two cores

A plain `pip install arctic-inference` builds in isolation, for which it downloads torch 2.7 and
grpcio-tools. vLLM imports only the package `arctic_inference.suffix_decoding`: three Python files
and one extension, which setuptools compiles from two C++ files and nanobind. They are installed as
arctic-inference 0.1.1+suffix, which pip lists, replaces and uninstalls, without the entry point
that would load the remainder of arctic-inference into every vLLM process.
"""

import importlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import zipfile
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path, PurePosixPath

from outrider.common.errors import OutriderError

INSTALL = "outrider doctor --install-suffix"
"""The command that installs what vLLM needs for suffix lookup."""

SOURCES = {
    # vLLM 0.32 names this release (vllm/config/speculative.py:1600). The suffix decoding of 0.3.0
    # is the same, byte for byte.
    "arctic-inference==0.1.1": "36857e2fbe3ead34821a04be98dfab95086050c1e38199c8fdfe308234fdcf63",
    "nanobind==3.1.0": "96984dbe8154ffb86e653b1b60aaeed6985c710c5e75ad0279eb87943c66292d",
}
"""Requirement and SHA-256 of the two files that are downloaded: an sdist, and a wheel of headers
and C++ files."""

PACKAGE = "arctic_inference"

FOLDERS = ("arctic_inference/suffix_decoding", "csrc/suffix_decoding")
FILES = ("LICENSE", "arctic_inference/__init__.py")
"""What is taken from the sdist."""

PROJECT = """\
[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "arctic-inference"
version = "0.1.1+suffix"
description = "The suffix decoding of arctic-inference 0.1.1, installed by Outrider for vLLM"
license = "Apache-2.0 AND BSD-3-Clause"
license-files = ["LICENSE", "LICENSE.nanobind"]
dependencies = ["numpy"]

[tool.setuptools]
packages = ["arctic_inference", "arctic_inference.suffix_decoding"]

[[tool.setuptools.ext-modules]]
name = "arctic_inference.suffix_decoding._C"
language = "c++"
sources = [
    "csrc/suffix_decoding/bindings.cc",
    "csrc/suffix_decoding/suffix_tree.cc",
    "nanobind/src/nb_combined.cpp",
]
include-dirs = ["nanobind/include", "nanobind/ext/robin_map/include"]
extra-compile-args = ["-std=c++20", "-O3", "-g0", "-fvisibility=hidden", "-fno-strict-aliasing"]
"""
"""pyproject.toml that replaces the sdist's; the flags are those of its CMakeLists.txt, and of
nanobind's src/nb_combined.cpp for builds without CMake."""


def installed_suffix() -> str | None:
    """The version of the package that vLLM needs for suffix lookup; None if it cannot be loaded."""
    importlib.invalidate_caches()
    try:
        importlib.import_module(f"{PACKAGE}.suffix_decoding")
    except ImportError:
        return None
    try:
        return version(PACKAGE)
    except PackageNotFoundError:  # on PYTHONPATH, without metadata
        return "of unknown version"


def install_suffix() -> None:
    """Downloads, compiles and installs suffix decoding into this Python's environment.

    Changes nothing if any step fails. Raises an `OutriderError` that names the fix.
    """
    _check_tools()
    with tempfile.TemporaryDirectory(prefix="outrider-suffix-") as scratch:
        downloads = _download(Path(scratch) / "downloads")
        project = Path(scratch) / "project"
        _unpacked(downloads, project)
        (project / "pyproject.toml").write_text(PROJECT, encoding="utf-8")
        options = ["--no-deps", "--no-index", "--no-build-isolation", "--force-reinstall"]
        installing = _pip("install", *options, str(project))
        if installing.returncode:
            raise OutriderError(
                f"suffix lookup: it could not be compiled or installed: {_first_error(installing)};"
                f" g++ 11 or newer, or clang 14, compiles it (CXX names another compiler), and"
                f" {sysconfig.get_path('purelib')} must be writable"
            )
    # A new process: this one may remember that the module is missing.
    command = [sys.executable, "-c", f"import {PACKAGE}.suffix_decoding"]
    loading = subprocess.run(command, capture_output=True, text=True, check=False)
    if loading.returncode:
        raise OutriderError(
            f"suffix lookup: installed, but it does not load: {_first_error(loading)}; remove it"
            f" with `{sys.executable} -m pip uninstall arctic-inference`"
        )


def _check_tools() -> None:
    """Raises an `OutriderError` if a part of the build is missing that pip does not install."""
    header = Path(sysconfig.get_path("include")) / "Python.h"
    compiler = os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++"
    # By metadata: finding pip's module turns off setuptools' distutils in this process.
    packages = {distribution.name for distribution in distributions()}
    tools = {
        "no pip in this environment": ("pip" in packages, f"{sys.executable} -m ensurepip"),
        "no setuptools in this environment": (
            "setuptools" in packages,
            f"{sys.executable} -m pip install 'setuptools>=77,<81'",
        ),
        f"no C++ compiler ({compiler})": (shutil.which(compiler.split()[0]), "apt install g++"),
        f"no {header}": (header.is_file(), "apt install python3-dev"),
    }
    for lacking, (present, fix) in tools.items():
        if not present:
            raise OutriderError(
                f"suffix lookup: {lacking}, which compiling it needs; {fix}, then `{INSTALL}`"
            )


def _download(folder: Path) -> Path:
    """Downloads SOURCES from the package index that pip is configured for."""
    folder.mkdir()
    requirements = folder / "requirements.txt"
    lines = [f"{requirement} --hash=sha256:{digest}" for requirement, digest in SOURCES.items()]
    requirements.write_text("\n".join(lines), encoding="utf-8")
    # pip reads an sdist's metadata by running its setup.py, which imports torch: not in isolation.
    options = ["--retries", "1", "--no-deps", "--no-build-isolation"]
    options += ["--no-binary", "arctic-inference"]
    files = ["--require-hashes", "--requirement", str(requirements), "--dest", str(folder)]
    downloading = _pip("download", *options, *files)
    if downloading.returncode == 0:
        return folder
    if "DO NOT MATCH THE HASHES" in downloading.stderr:
        raise OutriderError(
            "suffix lookup: the package index has other files than expected for"
            f" {' and '.join(SOURCES)} (SHA-256 differs), and none was used; name another index"
            " with PIP_INDEX_URL"
        )
    raise OutriderError(
        f"suffix lookup: pip could not download {' and '.join(SOURCES)}:"
        f" {_first_error(downloading)}; name an index that has both with PIP_INDEX_URL, or a folder"
        " with PIP_FIND_LINKS"
    )


def _unpacked(downloads: Path, project: Path) -> None:
    """Unpacks what PROJECT names from both files into one folder."""
    (sdist,) = downloads.glob("*.tar.gz")
    (wheel,) = downloads.glob("*.whl")
    with tarfile.open(sdist) as archive:
        for member in archive.getmembers():
            member.name = member.name.partition("/")[2]  # without arctic_inference-0.1.1/
            if PurePosixPath(member.name).parent.as_posix() in FOLDERS or member.name in FILES:
                archive.extract(member, project, filter="data")
    with zipfile.ZipFile(wheel) as files:
        files.extractall(project)
    (licence,) = project.glob("nanobind-*.dist-info/licenses/LICENSE")
    licence.rename(project / "LICENSE.nanobind")


def _pip(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _first_error(process: subprocess.CompletedProcess[str]) -> str:
    """The first line of the output that names an error, else the last one."""
    lines = [line.strip() for line in (process.stdout + process.stderr).splitlines()]
    errors = [line for line in lines if re.search(r"(?i)\berror: (?!subprocess-exited)", line)]
    return errors[0] if errors else (lines or ["no message"])[-1]
