"""Small bundles, whose weights are any bytes: for what never reads them."""

import json
from pathlib import Path
from typing import Any

from outrider.serving.bundle.bundle_digest import listing


def write_bundle(folder: Path, weights: bytes, k: int = 3, **manifest: Any) -> Path:
    """A bundle whose only difference is `weights`."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "twin").mkdir()
    (folder / "twin" / "config.json").write_text('{"twin": true}')
    (folder / "serve.sh").write_text("#!/bin/sh\n")
    (folder / "serve.sh").chmod(0o755)
    values = {
        **listing(folder),
        "method": "mtp",
        "num_speculative_tokens": k,
        "evidence": {},
    }
    (folder / "bundle.json").write_text(json.dumps(values | manifest))
    return folder
