"""The speculator that an endpoint was started with, as its first release.

    release = adopt(releases, directory, k=3)

What is rolled back to must be a release. Servers that were started with a bundle serve one. Others
serve a plain directory, or the target's own layer, of which a bundle is made.
"""

import tempfile
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.live.releases import Release, Releases
from outrider.serving.bundle.bundle_digest import MANIFEST


def adopt(releases: Releases, directory: Path, k: int) -> Release:
    """The release of what servers load from `directory`, with `k` drafts per step."""
    if not directory.is_dir():
        raise OutriderError(
            f"{directory}: the replicas' speculator is not here; run this command where their"
            " files are"
        )
    if (directory / MANIFEST).is_file():
        return releases.add(directory, parent=None)
    with tempfile.TemporaryDirectory(prefix="outrider-") as folder:
        return releases.add(_bundle_of(directory, k, Path(folder)), parent=None)


def _bundle_of(directory: Path, k: int, scratch: Path) -> Path:
    """A bundle of a speculator's directory, without evidence."""
    from outrider.serving.base_copy import served_base
    from outrider.serving.bundle.bundle import export_bundle
    from outrider.serving.config import ServingConfig, TargetConfig
    from outrider.speculators.kinds import trainable_kind_of

    kind = trainable_kind_of(directory)
    speculator = directory
    if kind.native(read_json(directory / "config.json")):
        # It may be the whole target's checkpoint: the layer alone.
        speculator = served_base(directory, directory, scratch)
    out = scratch / "bundle"
    export_bundle(
        speculator,
        TargetConfig(model=str(directory)),
        ServingConfig(),
        k,
        None,
        evidence={},
        out_dir=out,
        other_formats=False,
    )
    return out
