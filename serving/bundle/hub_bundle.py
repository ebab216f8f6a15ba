"""A bundle as a model repository of the Hugging Face Hub.

    upload_to_hub(stage, "hf://acme/resume-speculator")            # one commit, private if new
    download_from_hub("hf://acme/resume-speculator@march", directory)

The repository has the bundle's files and a model card, so `vllm serve` can name it in
`--speculative-config`.
"""

import contextlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from outrider.common.errors import OutriderError
from outrider.serving.bundle.bundle_digest import MANIFEST, MANIFEST_LIMIT, read_manifest
from outrider.serving.bundle.model_card import model_card

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

_ADDRESS = re.compile(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?/?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


class HubAddress(NamedTuple):
    """A repository and, after `@`, its branch, tag or commit."""

    repository: str
    revision: str | None

    @classmethod
    def parse(cls, address: str) -> "HubAddress":
        """From `hf://OWNER/NAME[@REVISION]`."""
        found = _ADDRESS.fullmatch(address)
        if not found:
            raise OutriderError(f"{address}: write hf://OWNER/NAME or hf://OWNER/NAME@REVISION")
        return cls(*found.groups())


def is_hub_address(place: str) -> bool:
    """Whether a place is a repository of the hub."""
    return place.startswith("hf://")


def hub_folder(stage: Path, repository: str, folder: Path) -> None:
    """Writes to `folder` exactly what is uploaded: the bundle and README.md, the model card."""
    shutil.copytree(stage, folder, dirs_exist_ok=True)
    (folder / "README.md").write_text(model_card(stage, repository), encoding="utf-8")


def upload_to_hub(stage: Path, address: str) -> None:
    """Replaces the repository's files in one commit. A new repository is private."""
    from huggingface_hub import HfApi

    repository, revision = HubAddress.parse(address)
    api = HfApi()
    with tempfile.TemporaryDirectory(prefix="outrider-") as folder:
        hub_folder(stage, repository, Path(folder))
        with _answering(address):
            api.create_repo(repository, private=True, exist_ok=True)
            if revision is not None:
                api.create_branch(repository, branch=revision, exist_ok=True)
            api.upload_folder(
                repo_id=repository,
                folder_path=folder,
                revision=revision,
                commit_message="Speculator exported by Outrider",
                delete_patterns="*",  # what the last bundle had and this one has not
            )


def pinned_address(address: str) -> str:
    """The address with the commit that its branch or tag has now."""
    repository, revision = HubAddress.parse(address)
    if revision is not None and _COMMIT.fullmatch(revision):
        return address
    return f"hf://{repository}@{_info(address).sha}"


def download_from_hub(address: str, directory: Path) -> None:
    """Downloads what bundle.json lists, of one commit; nothing if the list is refused."""
    from huggingface_hub import hf_hub_download, snapshot_download

    info = _info(address)
    repository, commit = HubAddress.parse(address).repository, str(info.sha)
    sizes = {each.rfilename: each.size for each in info.siblings or ()}
    if MANIFEST not in sizes:
        raise OutriderError(f"{address}: has no bundle.json; it is no bundle of Outrider")
    if (sizes[MANIFEST] or 0) > MANIFEST_LIMIT:
        raise OutriderError(f"{address}: bundle.json is larger than {MANIFEST_LIMIT} bytes")
    with _answering(address):
        hf_hub_download(repository, MANIFEST, revision=commit, local_dir=directory)
    listed = read_manifest(directory)["sizes"]
    for name, size in listed.items():
        if sizes.get(name) != size:
            raise OutriderError(
                f"{address}: {name}: {sizes.get(name, 'no')} bytes, but bundle.json has {size};"
                " export again"
            )
    with _answering(address):
        snapshot_download(
            repository, revision=commit, local_dir=directory, allow_patterns=list(listed)
        )


def _info(address: str) -> "ModelInfo":
    from huggingface_hub import HfApi

    repository, revision = HubAddress.parse(address)
    with _answering(address):
        return HfApi().model_info(repository, revision=revision, files_metadata=True)


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
