"""Erases sessions from a bundle's history.

    erase_sessions(Path("runs/march/bundle"), ["conversation 17"])     # number of responses erased
    erase_keys(Path("runs/march/bundle"), [session_key("conversation 17")])

A history is part of a bundle's digest, so the bundle is then another release.
"""

import shutil
from collections.abc import Collection, Sequence
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.common.files import publish, write_json
from outrider.serving.bundle.bundle_digest import (
    MANIFEST,
    OF_THE_HUB,
    bundle_digest,
    list_files,
    read_manifest,
)
from outrider.speculators.lookup_history import HISTORY_FILE, read_history, session_key

_LEFT_OUT = shutil.ignore_patterns(HISTORY_FILE, MANIFEST, *OF_THE_HUB)


def holds_sessions(bundle: Path, sessions: Collection[str]) -> bool:
    """Whether a bundle's history has responses of one of these sessions."""
    return holds_keys(bundle, {session_key(name) for name in sessions})


def holds_keys(bundle: Path, keys: Collection[bytes]) -> bool:
    """Whether a bundle's history has responses of a session with one of these `session_key`s."""
    if not keys or HISTORY_FILE not in read_manifest(bundle)["files"]:
        return False
    return any(bytes(key) in keys for key in read_history(bundle / HISTORY_FILE).sessions_R)


def erase_sessions(bundle: Path, sessions: Sequence[str] | None) -> int:
    """Erases sessions from the bundle in a local folder; returns the number of responses.

    None erases all. Otherwise as `erase_keys`.
    """
    keys = None if sessions is None else {session_key(name) for name in sessions}
    return erase_keys(bundle, keys)


def erase_keys(bundle: Path, keys: Collection[bytes] | None) -> int:
    """Erases the sessions with these `session_key`s; returns the number of responses.

    None erases all. The folder is replaced at once. Raises an `OutriderError` if the bundle has no
    history, or was changed since it was written.
    """
    manifest = read_manifest(bundle)
    bundle_digest(bundle)
    if HISTORY_FILE not in manifest["files"]:
        raise OutriderError(
            f"{bundle}: has no {HISTORY_FILE}, so it holds no session: nothing to erase"
        )
    history = read_history(bundle / HISTORY_FILE)
    if keys is None:
        keys = {*map(bytes, history.sessions_R)}
    erased = history.without_sessions(keys)
    with publish(bundle) as temporary:
        shutil.copytree(bundle, temporary, ignore=_LEFT_OUT)
        erased.write(temporary / HISTORY_FILE)
        manifest |= {**list_files(temporary), "history": erased.facts}
        write_json(temporary / MANIFEST, manifest)
    return history.responses - erased.responses
