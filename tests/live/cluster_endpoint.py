"""An endpoint of a cluster."""

from pathlib import Path
from typing import Any

import yaml

from outrider.live.endpoint_file import Endpoint, load_endpoint

SOURCE = "s3://models/resume/march"


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
