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
from outrider.common.files import publish, read_json
from outrider.serving.hub_bundle import download_from_hub, is_hub_address, upload_to_hub
from outrider.serving.oci_layout import is_oci_address, read_oci_layout, write_oci_layout

MANIFEST = "bundle.json"


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


@contextlib.contextmanager
def local_bundle(location: str | Path) -> Iterator[Path]:
    """The bundle's directory; one at an address is downloaded for the time of the block."""
    place = str(location)
    if "://" not in place and not is_oci_address(place):
        yield Path(location).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="outrider-") as folder:
        directory = Path(folder)
        if is_hub_address(place):
            download_from_hub(place, directory)
        elif is_oci_address(place):
            read_oci_layout(place, directory)
        else:
            _download(place, directory)
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
            f"{url}: the bundle could not be written ({error}); it is incomplete"
        ) from error


def _download(url: str, directory: Path) -> None:
    import fsspec

    filesystem, root = fsspec.core.url_to_fs(url)
    try:
        filesystem.get_file(f"{root}/{MANIFEST}", f"{directory}/{MANIFEST}")
        for name in read_json(directory / MANIFEST)["files"]:
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            filesystem.get_file(f"{root}/{name}", f"{directory}/{name}")
    except OSError as error:
        raise OutriderError(f"{url}: no complete bundle there ({error})") from error
