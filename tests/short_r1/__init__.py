"""Nano R1 with 4 layers instead of 16: a trained target whose steps take half as long.

    directory = write_short_r1(nano_r1, tmp_path / "short_r1")

For tests of servers and engines that generate text, and for which any trained target will do. The
layers were distilled from nano R1's (tools/nano_r1/short_r1.py); embedding, head, MTP layer and
tokenizer are its own. Figures of traffic and of the shipped heads need nano R1 itself.
"""

import json
import shutil
from pathlib import Path

from outrider.common.files import read_json

LAYERS = 4
STORED = Path(__file__).parent / "layers.safetensors"


def write_short_r1(nano_r1: Path, directory: Path) -> Path:
    """Writes the target from nano R1's directory and the stored layers, and returns its own."""
    # tests/conftest.py imports this module before it sets what torch reads when it is imported.
    from safetensors.torch import load_file, save_file

    config = read_json(nano_r1 / "config.json")
    before = config["num_hidden_layers"]
    shutil.copytree(nano_r1, directory)
    kept = {
        name.replace(f"model.layers.{before}.", f"model.layers.{LAYERS}."): tensor
        for name, tensor in load_file(nano_r1 / "model.safetensors").items()
        if not name.startswith("model.layers.") or name.startswith(f"model.layers.{before}.")
    }
    save_file(kept | load_file(STORED), directory / "model.safetensors", metadata={"format": "pt"})
    text = json.dumps(config | {"num_hidden_layers": LAYERS}, indent=2) + "\n"
    (directory / "config.json").write_text(text, encoding="utf-8")
    return directory
