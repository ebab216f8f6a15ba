"""Publishes a speculator's directory: config.json and one safetensors file.

write_checkpoint(config, {"fc.weight": tensor}, out_dir)
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from outrider.common.files import publish


def write_checkpoint(config: Mapping[str, Any], tensors: dict[str, Tensor], out_dir: Path) -> None:
    """Publishes the directory, atomically; tensors are contiguous and share no memory."""
    with publish(Path(out_dir)) as temporary:
        temporary.mkdir()
        save_file(tensors, temporary / "model.safetensors", metadata={"format": "pt"})
        text = json.dumps(config, indent=2) + "\n"
        (temporary / "config.json").write_text(text, encoding="utf-8")
