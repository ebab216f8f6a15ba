"""Which vLLM releases serve which bundle, and what is lost in another than the tested one.

    release = release_in("docker run vllm/vllm-openai:v0.26.0 --model org/model")     # "0.26.0"
    print(served_with(release))

A bundle's speculator is plain files, and `vllm serve` needs none of Outrider's code. What decides
is whether a release's `speculative_config` accepts the bundle's method and keys. The table was read
from `vllm/config/speculative.py` of the releases 0.13.0, 0.15.0, 0.18.0, 0.22.0, 0.26.0 and 0.31.0;
only `WRITTEN_FOR` was run.
"""

import re

from packaging.version import InvalidVersion, Version

from outrider.serving.vllm_version import WRITTEN_FOR
from outrider.speculators.kinds import KINDS

OLDEST = "0.13.0"
"""The oldest release that was read."""

FIRST = {name: kind.first_release for name, kind in KINDS.items() if kind.speculates}
"""Kind -> the first of the releases read whose configuration accepts it."""

FIRST_OF_KEYS = {"draft_sample_method": "0.22.0", "num_speculative_tokens_per_batch_size": "0.26.0"}
"""Keys of a bundle's `speculative_config` that older releases refuse, as `FIRST`."""

LOST = (
    "swaps into running engines (outrider deploy) and suffix lookup's history of earlier responses"
)
"""What the hooks do, which are installed in `WRITTEN_FOR` only."""

IMAGE_TAG = re.compile(
    r"(?:^|[\s\"'/])[\w.-]*vllm[\w.-]*(?::|[\"']?[ \t]*\n[ \t]*tag:[ \t]*[\"']?)"
    r"v?(\d+\.\d+\.\d+[\w.+-]*)"
)
"""The release in a tag such as vllm/vllm-openai:v0.26.0. Charts have a line `tag: v0.26.0` after
the image's `repository`."""


def release_in(text: str) -> str | None:
    """The release in the image tag of a `vllm serve` command; None if there is none."""
    found = IMAGE_TAG.search(text)
    if found is None:
        return None
    # Builds of a release have suffixes, such as v0.26.0-cu129.
    number = found[1].partition("-")[0]
    try:
        return Version(number).public
    except InvalidVersion:
        return None


def served_with(release: str) -> str | None:
    """What a release serves and lacks, in words; None for `WRITTEN_FOR`."""
    version = Version(release)
    if version.public == WRITTEN_FOR:
        return None
    if version < Version(OLDEST):
        return (
            f"measured with {WRITTEN_FOR}, served with {release}: older than {OLDEST}, the oldest"
            " release whose configuration was read"
        )
    kinds = [kind for kind, first in FIRST.items() if Version(first) <= version]
    refused = [kind for kind in FIRST if kind not in kinds]
    keys = [key for key, first in FIRST_OF_KEYS.items() if Version(first) > version]
    parts = [f"its configuration accepts bundles of {', '.join(kinds)}"]
    if version > Version(WRITTEN_FOR):
        parts = ["it is newer, and no bundle has been tried in it"]
    if refused:
        parts.append(f"not of {', '.join(refused)}")
    if keys:
        parts.append(f"serve.sh needs {' and '.join(keys)} removed")
    parts.append(f"without {LOST}")
    return f"measured with {WRITTEN_FOR}, served with {release}: {'; '.join(parts)}"
