"""Flags and environment that let `vllm serve` swap its speculator.

    bundle/serve.sh --uds /run/outrider/a.sock $(python -m outrider.serving.admin.live_flags)

Run this with the variables of `live_environment`. Development mode (VLLM_SERVER_DEV_MODE) stays
off.
"""

import os
import secrets
import shlex
import stat
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.serving.hooked import HOOKED, SWAP_EXTENSION

ROOTS = "OUTRIDER_RELEASE_ROOTS"
"""Variable that lists the folders that may contain releases, separated by os.pathsep."""

ADMIN = "OUTRIDER_ADMIN"
"""Variable that holds the address of the admin route: `unix:PATH`."""

TOKEN_FILE = "OUTRIDER_ADMIN_TOKEN_FILE"
"""Variable that holds the path of the admin route's token file."""

LIVE_FLAGS = (
    "--worker-extension-cls",
    SWAP_EXTENSION,
    "--per-request-spec-decode-metrics",
    "summary",
)
"""Arguments of `vllm serve` that follow those of the bundle."""


def live_environment(roots: Sequence[Path], admin: str, token_file: Path) -> dict[str, str]:
    """Returns environment variables for a server that loads releases only from `roots`."""
    return HOOKED | {
        ADMIN: admin,
        TOKEN_FILE: str(token_file),
        ROOTS: os.pathsep.join(str(Path(root).absolute()) for root in roots),
    }


def admin_token(path: Path) -> str:
    """Reads the token from a private file, which the first caller creates."""
    try:
        if not path.exists():
            with tempfile.NamedTemporaryFile("w", dir=path.parent) as new:  # mode 0600
                new.write(secrets.token_hex(32))
                new.flush()
                with suppress(FileExistsError):
                    os.link(new.name, path)
        mode = stat.S_IMODE(path.stat().st_mode)
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise OutriderError(
            f"{path}: the token of the admin route cannot be read or written ({error.strerror});"
            " servers and controller must run as the same user"
        ) from None
    if mode & 0o077 or len(token) < 16 or len(token.split()) != 1:
        raise OutriderError(
            f"{path}: mode {mode:o}, {len(token)} characters: the admin route's token must be one"
            " word of at least 16 characters in a file that others cannot read (mode 600); delete"
            " the file and restart the servers"
        )
    return token


if __name__ == "__main__":
    print(shlex.join(LIVE_FLAGS))
