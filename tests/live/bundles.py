"""Small bundles, whose weights are any bytes, and an endpoint of a cluster."""

import json
from pathlib import Path
from typing import Any

import yaml

from outrider.live.endpoint_file import Endpoint, load_endpoint
from outrider.serving.bundle.bundle_digest import listing

SOURCE = "s3://models/resume/march"


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


def cluster_endpoint(
    folder: Path, policy: dict[str, Any] | None = None, size: int = 3, **cluster: Any
) -> Endpoint:
    """An endpoint with `size` stable replicas and one canary, and this section `cluster`."""
    replicas = [{"name": f"s{i}", "data": f"unix:s{i}.sock"} for i in range(size)]
    replicas.append({"name": "c", "data": "unix:c.sock", "role": "canary"})
    values = {
        "state_dir": "state",
        "replicas": replicas,
        "policy": policy or {},
        "cluster": {"stable": "own", "speculator": SOURCE} | cluster,
    }
    path = folder / "resume_eu.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return load_endpoint(path)
