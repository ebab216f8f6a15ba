"""Writes and reads bundles at local, fsspec and Hugging Face addresses; reads OCI layouts.

put_bundle(stage, "s3://bucket/resume")                # fsspec: bundle.json is written last
put_bundle(stage, "hf://acme/resume-speculator")       # one commit, with a model card
with local_bundle("hf://acme/resume-speculator@main") as directory: ...
with local_bundle("oci:images/resume:march") as directory: ...
"""

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import fsspec
import huggingface_hub

from outrider.common.errors import OutriderError
from outrider.common.files import SCRATCH, publish
from outrider.common.process_tree import temporary_folder
from outrider.common.redaction import without_credentials
from outrider.serving.bundle.bundle_digest import (
    MANIFEST,
    MANIFEST_LIMIT,
    check_files,
    files_of,
    read_manifest,
)
from outrider.serving.bundle.model_card import model_card
from outrider.serving.bundle.oci_layout import read_oci_layout
from outrider.speculators.lookup_history import HISTORY_FILE

HUB, OCI = "hf://", "oci:"

_PIECE = 2**22

# The hub's rule for names: none begins with a dot or a hyphen.
_ADDRESS = re.compile(r"hf://(\w[\w.-]*/\w[\w.-]*)(?:@([\w./-]+))?/?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


def check_destination(to: str | Path) -> None:
    """Raises an `OutriderError` for an address that bundles are not written to."""
    if str(to).startswith(OCI):
        raise OutriderError(
            f"{to}: images are read, not written; export to a folder with `outrider export RUN --to"
            " image/bundle` and build it with the lines FROM scratch and COPY bundle /models"
        )


@contextlib.contextmanager
def staging_folder(to: str | Path) -> Iterator[Path]:
    """Yields a folder in which a bundle for `to` is put together.

    It is next to a local bundle, where the next command on the run removes what a killed one left,
    and in TMPDIR if `to` is an address.
    """
    if "://" in str(to):
        with temporary_folder() as folder:
            yield folder
        return
    place = Path(to).parent
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place, prefix=SCRATCH) as name:
        yield Path(name)


def put_bundle(stage: Path, to: str | Path) -> None:
    """Copies a finished bundle to a directory or address, replacing existing content.

    Readers see the old or the new bundle. Only at an fsspec URL do they see none during the copy,
    because bundle.json is removed first and written last.
    """
    check_destination(to)
    address = str(to)
    if address.startswith(HUB):
        _upload_to_hub(stage, address)
    elif "://" in address:
        _upload(stage, address)
    else:
        with publish(Path(to)) as temporary:
            shutil.copytree(stage, temporary)


def pin_location(location: str | Path) -> str:
    """Returns the location; a hub address is pinned to its current commit."""
    address = str(location)
    if not address.startswith(HUB):
        return address
    repository, revision = _repository(address)
    if revision is not None and _COMMIT.fullmatch(revision):
        return address
    commit, _ = _commit_and_sizes(address)
    return f"hf://{repository}@{commit}"


@contextlib.contextmanager
def local_bundle(location: str | Path) -> Iterator[Path]:
    """Yields the bundle's directory, which is temporary for a remote bundle.

    It has exactly the files that bundle.json lists (`check_files`). If the list names a file
    outside the bundle, no listed file is written. A file is read only up to its listed size.
    """
    address = str(location)
    if address.startswith(("file://", "local://")):
        address = address.partition("://")[2]
    if "://" not in address and not address.startswith(OCI):
        directory = _local_folder(address)
        check_files(directory)
        yield directory
        return
    with temporary_folder() as directory:
        if address.startswith(HUB):
            _download_from_hub(address, directory)
        elif address.startswith(OCI):
            read_oci_layout(address, directory)
        else:
            _download(address, directory)
        check_files(directory)
        yield directory


def _local_folder(address: str) -> Path:
    try:
        directory = Path(address).resolve()
        directory.is_dir()  # raises for names that are too long
    except (OSError, ValueError):
        raise OutriderError(
            f"{address!r:.300}: not a path; give the folder that `outrider export` wrote"
        ) from None
    return directory


def _store(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """An address's filesystem, and its path there."""
    try:
        filesystem, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        reason = without_credentials(str(error))
        raise OutriderError(
            f"{without_credentials(url)}: no store for this address ({reason}); correct it, or"
            " install the package of its store"
        ) from None
    return filesystem, root


def _upload(stage: Path, url: str) -> None:
    filesystem, root = _store(url)
    try:
        filesystem.makedirs(root, exist_ok=True)
        if filesystem.exists(f"{root}/{MANIFEST}"):
            filesystem.rm(f"{root}/{MANIFEST}")
        files = sorted(files_of(stage), key=lambda file: file.name == MANIFEST)
        for file in files:
            remote_path = f"{root}/{file.relative_to(stage).as_posix()}"
            filesystem.makedirs(remote_path.rpartition("/")[0], exist_ok=True)
            filesystem.put_file(str(file), remote_path)
    except OSError as error:
        raise OutriderError(
            f"{without_credentials(url)}: the bundle could not be written"
            f" ({without_credentials(str(error))}); it is incomplete"
        ) from None


def _download(url: str, directory: Path) -> None:
    filesystem, root = _store(url)

    def fetch(name: str, limit: int) -> None:
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with filesystem.open(f"{root}/{name}", "rb") as source, path.open("xb") as out:
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


def _repository(address: str) -> tuple[str, str | None]:
    """Splits `hf://OWNER/NAME[@REVISION]` into repository and branch, tag or commit."""
    match = _ADDRESS.fullmatch(address)
    if match is None:
        raise OutriderError(f"{address!r}: write hf://OWNER/NAME or hf://OWNER/NAME@REVISION")
    return match[1], match[2]


def _upload_to_hub(stage: Path, address: str) -> None:
    """Replaces the repository's files in one commit. A new repository is private."""
    repository, revision = _repository(address)
    files = read_manifest(stage)["files"]
    api = huggingface_hub.HfApi()
    with temporary_folder() as folder:
        shutil.copytree(stage, folder, dirs_exist_ok=True)
        (folder / "README.md").write_text(model_card(stage, repository), encoding="utf-8")
        with _answering(address):
            api.create_repo(repository, private=True, exist_ok=True)
            if HISTORY_FILE in files and not api.model_info(repository).private:
                raise OutriderError(
                    f"{address}: a public repository, but {HISTORY_FILE} is customer text; make the"
                    " repository private, or export to another address"
                )
            if revision is not None:
                api.create_branch(repository, branch=revision, exist_ok=True)
            api.upload_folder(
                repo_id=repository,
                folder_path=folder,
                revision=revision,
                commit_message="Speculator exported by Outrider",
                delete_patterns="*",  # removes files that only the old bundle has
            )


def _download_from_hub(address: str, directory: Path) -> None:
    """Downloads the listed files at one commit, after checking bundle.json's list."""
    repository = _repository(address)[0]
    commit, sizes = _commit_and_sizes(address)
    if MANIFEST not in sizes:
        raise OutriderError(f"{address}: not an Outrider bundle: no bundle.json")
    if (sizes[MANIFEST] or 0) > MANIFEST_LIMIT:
        raise OutriderError(f"{address}: bundle.json is larger than {MANIFEST_LIMIT} bytes")
    with _answering(address):
        huggingface_hub.hf_hub_download(repository, MANIFEST, revision=commit, local_dir=directory)
    listed = read_manifest(directory)["sizes"]
    for name, size in listed.items():
        if sizes.get(name) != size:
            raise OutriderError(
                f"{address}: {name}: {sizes.get(name, 'no')} bytes, but bundle.json has {size};"
                " export again"
            )
    with _answering(address):
        huggingface_hub.snapshot_download(
            repository, revision=commit, local_dir=directory, allow_patterns=list(listed)
        )


def _commit_and_sizes(address: str) -> tuple[str, dict[str, int | None]]:
    """The revision's commit, and the size in bytes of each file."""
    repository, revision = _repository(address)
    api = huggingface_hub.HfApi()
    with _answering(address):
        info = api.model_info(repository, revision=revision, files_metadata=True)
    return str(info.sha), {file.rfilename: file.size for file in info.siblings or ()}


@contextlib.contextmanager
def _answering(address: str) -> Iterator[None]:
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        yield
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        detail = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise OutriderError(
            f"{address}: the hub refused or did not answer ({type(error).__name__}: {detail}); "
            "check the name, the token (`hf auth login`, needs write access) and HF_HUB_OFFLINE"
        ) from None
