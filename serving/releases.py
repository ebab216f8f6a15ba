"""Which vLLM releases serve which bundle, and what is lost in another than the tested one.

    release = release_in("docker run vllm/vllm-openai:v0.26.0 --model org/model")     # "0.26.0"
    print(release_support(release))

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

LOST = "swaps into running engines (outrider deploy) and a lookup's history of earlier responses"
"""What the hooks do, which are installed in `WRITTEN_FOR` only."""

_RELEASE = r"v?(0\.\d+\.\d+[\w.+-]*)"
"""vLLM's releases are 0.x."""

_OWN_IMAGE = (
    r"(?:^|(?<=[\s\"'/=:(]))(?<!lmcache/)"
    r"(?:vllm-openai[\w-]*|vllm(?:-(?:cpu|rocm|tpu|xpu|neuron|dev|gaudi|hpu)[\w-]*)?)"
)
"""Names of images whose tag is vLLM's release: those of the project, and copies of them under the
same name. LMCache's vllm-openai has LMCache's."""

_TAG = re.compile(
    _OWN_IMAGE + r"(?::|[\"']?[ \t]*\n[ \t]*tag:[ \t]*[\"']?)" + _RELEASE, re.MULTILINE
)
"""The release in a tag such as vllm/vllm-openai:v0.26.0. Charts have a line `tag: v0.26.0` after
the image's `repository`."""

_TAG_OF_ROCM = re.compile(_OWN_IMAGE + r":[\w.-]*_vllm_" + _RELEASE, re.MULTILINE)
"""The release in AMD's tags, such as rocm/vllm:rocm6.4.1_vllm_0.10.1_20250909."""

_PACKAGE = re.compile(r"\bvllm(?:\[[\w,.-]*\])?[ \t]*==[ \t]*" + _RELEASE)
"""The release in `pip install vllm==0.20.1`, `uv run --with vllm==...` or a list of packages."""

_SHOWN = re.compile(r"^Name:[ \t]*vllm[ \t]*\r?\nVersion:[ \t]*" + _RELEASE, re.MULTILINE)
"""The release in what `pip show vllm` prints."""

_SIF = re.compile(r"\bvllm[\w-]{0,60}?[_-]" + _RELEASE + r"\.sif\b")
"""The release in a name that Apptainer gives to vLLM's image, such as vllm-openai_v0.11.0.sif."""

_LOGGED = re.compile(
    r"(?:LLM engine \(v|vLLM API server version |vLLM Version[ \t]*:[ \t]*)" + _RELEASE
)
"""The release in vLLM's log, or in what its `collect_env.py` prints for an issue."""

_ANY_TAG_OF_OWN = re.compile(_OWN_IMAGE + r"[:@][\w.+:-]+", re.MULTILINE)

_IMAGE = re.compile(
    r"(?:\bimage(?:_id)?[\"']?[ \t]*[:=][ \t]*[\"']?(?:docker:)?"
    r"([\w.-]+(?:[:/][\w.-]+)*[:@][\w.:-]+)"
    r"|\b((?:[\w.-]{1,100}/){0,5}[\w.-]{0,100}(?:vllm|djl-inference)[\w.-]{0,100}:v?\d[\w.-]*))"
)
"""An image under a key `image`, or one with vLLM in its name."""

_NOT_SERVERS = re.compile(r"sidecar|router|proxy|exporter|busybox|nginx")
"""Parts of names of images that serve no model."""

MOST_IMAGES = 3
"""Images that are named if vLLM's release is not known."""


def release_in(text: str, image: str = "") -> str | None:
    """vLLM's release in an image's tag or a package's pin; None if there is none.

    `image` is the one whose command is read; without it, the first of the text's counts.
    """
    tagged = image or text
    searched = (
        (_TAG, tagged),
        (_TAG_OF_ROCM, tagged),
        (_PACKAGE, text),
        (_SHOWN, text),
        (_SIF, text),
    )
    for pattern, where in searched:
        match = pattern.search(where)
        if match is not None and (release := _public(match[1])):
            return release
    logged = _LOGGED.findall(text)  # of the last start
    return _public(logged[-1]) if logged else None


def release_refusal(text: str, image: str = "") -> str | None:
    """Why the tags of a text's images name no release of vLLM; None without tags."""
    fix = "set serving.production_release to what `vllm --version` prints in production"
    images = [image] if re.search("[:@]", image) else _images_in(text)
    own = [name for name in images if _ANY_TAG_OF_OWN.search(name)]
    if own:
        return f"{own[0]} names no release of vLLM; {fix}"
    if not images:
        return None
    names = ", ".join(images[:MOST_IMAGES])
    return f"{names}: the tag is its maker's release, and vLLM's is not known; {fix}"


def _images_in(text: str) -> list[str]:
    names = [first or second for first, second in _IMAGE.findall(text)]
    return [name for name in dict.fromkeys(names) if not _NOT_SERVERS.search(name)]


def _public(number: str) -> str | None:
    """The release without what names a build, as in v0.26.0-cu129 or 0.10.1_20250909."""
    try:
        return Version(re.split("[-_]", number)[0].rstrip(".")).public
    except InvalidVersion:
        return None


def release_support(release: str) -> str | None:
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
