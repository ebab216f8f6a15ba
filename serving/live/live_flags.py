"""Flags and environment with which `vllm serve` can exchange its speculator.

    bundle/serve.sh --uds /run/outrider/a.sock $(python -m outrider.serving.live.live_flags)

with VLLM_PLUGINS and OUTRIDER_RELEASE_ROOTS of `live_environment`. Development mode
(VLLM_SERVER_DEV_MODE) stays off.
"""

import json
import os
import shlex
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path

BACKEND = "safetensors"
"""Name of Outrider's weight transfer engine (vllm_hooks/weight_transfer.py)."""

ROOTS = "OUTRIDER_RELEASE_ROOTS"
"""Variable with the folders below which releases are accepted, separated by os.pathsep."""

PLUGINS = "VLLM_PLUGINS"
ADMIN_PLUGIN = "outrider_speculator"
"""Name of the admin route's entry point, which vLLM loads only where VLLM_PLUGINS names it."""

LIVE_FLAGS = (
    "--weight-transfer-config",
    json.dumps({"backend": BACKEND}),
    "--per-request-spec-decode-metrics",
    "summary",
)
"""Arguments of `vllm serve`, after those of the bundle."""


def live_environment(roots: Sequence[Path]) -> dict[str, str]:
    """Variables of a server that accepts releases below `roots` (absolute paths).

    VLLM_PLUGINS turns off what it does not name, so it names every plugin that is installed.
    """
    named = os.environ.get(PLUGINS)
    if named is None:
        groups = ("general", "platform", "io_processor", "stat_logger")
        found = [e.name for group in groups for e in entry_points(group=f"vllm.{group}_plugins")]
    else:
        found = named.split(",")
    names = dict.fromkeys([*found, "outrider", ADMIN_PLUGIN])
    return {
        PLUGINS: ",".join(name for name in names if name),
        ROOTS: os.pathsep.join(str(Path(root).absolute()) for root in roots),
    }


def release_roots() -> list[Path]:
    """The roots that this process was started with."""
    return [Path(root) for root in os.environ.get(ROOTS, "").split(os.pathsep) if root]


if __name__ == "__main__":
    print(shlex.join(LIVE_FLAGS))
