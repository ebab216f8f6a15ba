"""Where a bundle can be written to and read from.

put_bundle(stage, "s3://bucket/resume")                # fsspec: bundle.json is written last
put_bundle(stage, "hf://acme/resume-speculator")       # one commit, with a model card
put_bundle(stage, "oci:images/resume:march")           # an OCI image layout
with local_bundle("hf://acme/resume-speculator@main") as directory: ...
"""

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.common.files import publish
from outrider.common.redaction import without_credentials
from outrider.serving.bundle.bundle_digest import (
    MANIFEST,
    MANIFEST_LIMIT,
    check_files,
    read_manifest,
)
from outrider.serving.bundle.hub_bundle import (
    download_from_hub,
    is_hub_address,
    pinned_address,
    upload_to_hub,
)
from outrider.serving.bundle.oci_layout import is_oci_address, read_oci_layout, write_oci_layout

_PIECE = 2**22


def put_bundle(stage: Path, to: str | Path) -> None:
    """Copies the finished bundle in `stage` to a directory or an address, replacing what is there.

    Readers see the old bundle or the new one, but at an fsspec URL none while it is replaced:
    bundle.json is removed first and written last.
    """
    place = str(to)
    if is_hub_address(place):
        upload_to_hub(stage, place)
    elif is_oci_address(place):
        write_oci_layout(stage, place)
    elif "://" in place:
        _upload(stage, place)
    else:
        with publish(Path(to)) as temporary:
            shutil.copytree(stage, temporary)


def pinned(location: str | Path) -> str:
    """The location; an address of the hub with the commit that its branch or tag has now."""
    place = str(location)
    return pinned_address(place) if is_hub_address(place) else place


@contextlib.contextmanager
def local_bundle(location: str | Path) -> Iterator[Path]:
    """The bundle's directory; one at an address is downloaded for the time of the block.

    It has the files that bundle.json lists and no others (`check_files`). An address is refused
    before anything is written where its list names another place, and a file is read up to the size
    in the list.
    """
    place = str(location)
    if place.startswith(("file://", "local://")):
        place = place.partition("://")[2]
    if "://" not in place and not is_oci_address(place):
        directory = Path(place).resolve()
        check_files(directory)
        yield directory
        return
    with tempfile.TemporaryDirectory(prefix="outrider-") as folder:
        directory = Path(folder)
        if is_hub_address(place):
            download_from_hub(place, directory)
        elif is_oci_address(place):
            read_oci_layout(place, directory)
        else:
            _download(place, directory)
        check_files(directory)
        yield directory


def files_of(directory: Path) -> list[Path]:
    """Every file below a directory, in order."""
    return sorted(path for path in directory.rglob("*") if path.is_file())


def _upload(stage: Path, url: str) -> None:
    import fsspec

    filesystem, root = fsspec.core.url_to_fs(url)
    try:
        filesystem.makedirs(root, exist_ok=True)
        if filesystem.exists(f"{root}/{MANIFEST}"):
            filesystem.rm(f"{root}/{MANIFEST}")
        files = sorted(files_of(stage), key=lambda file: file.name == MANIFEST)
        for file in files:
            place = f"{root}/{file.relative_to(stage).as_posix()}"
            filesystem.makedirs(place.rpartition("/")[0], exist_ok=True)
            filesystem.put_file(str(file), place)
    except OSError as error:
        raise OutriderError(
            f"{without_credentials(url)}: the bundle could not be written"
            f" ({without_credentials(str(error))}); it is incomplete"
        ) from None


def _download(url: str, directory: Path) -> None:
    import fsspec

    filesystem, root = fsspec.core.url_to_fs(url)

    def fetch(name: str, limit: int) -> None:
        place = directory / name
        place.parent.mkdir(parents=True, exist_ok=True)
        with filesystem.open(f"{root}/{name}", "rb") as source, place.open("xb") as out:
            left = limit
            while piece := source.read(min(_PIECE, left + 1)):
                if (left := left - len(piece)) < 0:
                    raise OutriderError(f"{name} has more than {limit} bytes; export again")
                out.write(piece)

    try:
        fetch(MANIFEST, MANIFEST_LIMIT)
        for name, size in read_manifest(directory)["sizes"].items():
            fetch(name, size)
    except (OSError, OutriderError) as error:
        reason = str(error).replace(str(directory), "bundle")
        raise OutriderError(
            f"{without_credentials(url)}: no complete bundle there ({without_credentials(reason)})"
        ) from None
