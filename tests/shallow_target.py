"""Nano R1 with its first layers only: the same shapes and tokens, shorter steps.

    write_shallow_target(nano_r1, tmp_path / "target", layers=2)

For tests of how an engine is driven, where its text does not matter: that is noise.
"""

import json
from pathlib import Path

from safetensors.torch import load_file, save_file


def write_shallow_target(source: Path, directory: Path, layers: int = 2) -> Path:
    """Writes the first `layers` layers and the MTP layer of the target at `source`."""
    directory.mkdir(parents=True)
    config = json.loads((source / "config.json").read_text())
    mtp, kept = config["num_hidden_layers"], {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if name.startswith("model.layers."):
            _, _, number, rest = name.split(".", 3)
            if layers <= int(number) < mtp:
                continue
            place = str(layers) if int(number) == mtp else number
            name = f"model.layers.{place}.{rest}"
        kept[name] = tensor
    save_file(kept, directory / "model.safetensors", metadata={"format": "pt"})
    (directory / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))
    for path in source.iterdir():
        if path.name not in ("config.json", "model.safetensors"):
            (directory / path.name).symlink_to(path)
    return directory
