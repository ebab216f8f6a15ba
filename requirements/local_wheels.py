"""Names the files of local wheel folders that have a pinned version and another SHA-256.

    python requirements/local_wheels.py requirements/torch-cpu.txt torch==2.13.0+cpu

The folders are those of UV_FIND_LINKS. setup.sh asks after uv refused such a file, since uv names
the package only. Standard library only: nothing is installed yet.
"""

import hashlib
import os
import re
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit


def pinned_digests(pins: str, package: str) -> set[str]:
    """The SHA-256 digests that a file of pins lists for a package, such as `torch==2.13.0+cpu`."""
    for entry in re.split(r"\n(?=\S)", pins):
        if entry.split(maxsplit=1)[:1] == [package]:
            return set(re.findall(r"--hash=sha256:([0-9a-f]{64})", entry))
    return set()


def local_folders(find_links: str) -> list[Path]:
    """The folders of a list that may also contain addresses."""
    folders = []
    for place in re.split(r"[,\s]+", find_links):
        path = unquote(urlsplit(place).path) if place.startswith("file:") else place
        if path and "://" not in path:
            folders.append(Path(path))
    return [folder for folder in folders if folder.is_dir()]


def is_file_of(file_name: str, package: str) -> bool:
    """Whether a wheel or sdist has the package's name and version, by its file name."""
    name, _, version = package.partition("==")
    spelled = re.sub(r"[-_.]+", "[-_.]+", re.escape(name).replace(r"\-", "-").replace(r"\.", "."))
    ending = r"(-.*\.whl|\.tar\.gz|\.zip)"
    return re.fullmatch(f"{spelled}-{re.escape(version)}{ending}", file_name, re.I) is not None


def main() -> None:
    pins_file, package = sys.argv[1:]
    pinned = pinned_digests(Path(pins_file).read_text(), package)
    for folder in local_folders(os.environ.get("UV_FIND_LINKS", "")):
        for path in sorted(folder.iterdir()):
            if not is_file_of(path.name, package):
                continue
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            if digest not in pinned:
                print(f"{path} (SHA-256 {digest})")


if __name__ == "__main__":
    main()
