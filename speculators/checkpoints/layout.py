"""What a target's checkpoint holds and in which files, from config.json and the safetensors index alone: no weights, no torch.

    layout = read_layout(directory)
    layout.files(layout.training_tensors())      # of R1's 163 shards the few with the MTP layer, the embedding and the head

Training reads these tensors and no others, so the other 600 GB of an R1 need not be on the machine that trains.
"""

import dataclasses
import json
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.files import read_json

SHARED_WITH_TARGET = ("embed_tokens.weight", "shared_head.head.weight")
"""Tensors of the MTP layer that DeepSeek ships as copies of the target's embedding and head: neither read nor written."""

DERIVED = ".rotary_emb.inv_freq"
"""Rotary frequencies, which some conversions store: they follow from config.json, and nothing reads them."""

SCALE_SUFFIX = "_scale_inv"
"""DeepSeek's name for the scales of NAME.weight is NAME.weight_scale_inv, though they are multiplied with."""

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


@dataclasses.dataclass(frozen=True)
class CheckpointLayout:
    """A checkpoint's tensors by name. `blocks`: rows and columns of an FP8 block, None where the weights are not quantized."""

    directory: Path
    config: dict[str, Any]
    weight_map: dict[str, str]
    blocks: tuple[int, int] | None

    @property
    def prefix(self) -> str:
        """What the names of the MTP layer's tensors begin with."""
        return f"model.layers.{self.config['num_hidden_layers']}."

    @property
    def ends(self) -> tuple[str, str]:
        """Names of the embedding and of the head."""
        embedding = "model.embed_tokens.weight"
        return embedding, embedding if self.config.get("tie_word_embeddings") else "lm_head.weight"

    def mtp_suffixes(self) -> set[str]:
        """The MTP layer's tensors less the prefix, scales included, copies of the target's ends left out."""
        suffixes = {
            name.removeprefix(self.prefix)
            for name in self.weight_map
            if name.startswith(self.prefix)
        }
        return {name for name in suffixes - set(SHARED_WITH_TARGET) if not name.endswith(DERIVED)}

    def training_tensors(self) -> list[str]:
        """Every tensor that training reads: the MTP layer's, the embedding, the head."""
        return sorted({self.prefix + suffix for suffix in self.mtp_suffixes()} | set(self.ends))

    def scale_of(self, name: str) -> str | None:
        """The name of the tensor with a quantized one's scales; None where `name` is not quantized."""
        return name + SCALE_SUFFIX if name + SCALE_SUFFIX in self.weight_map else None

    def files(self, names: Iterable[str]) -> list[str]:
        """The files, by name, that hold these tensors; a tensor that the checkpoint does not have is an `OutriderError`."""
        return sorted(self.by_file(names))

    def by_file(self, names: Iterable[str]) -> dict[str, list[str]]:
        """The same, with what is wanted of each."""
        found: dict[str, list[str]] = {}
        for name in sorted(names):
            if name not in self.weight_map:
                raise OutriderError(f"{self.directory}: the checkpoint has no tensor {name}")
            found.setdefault(self.weight_map[name], []).append(name)
        return found


def read_layout(directory: Path) -> CheckpointLayout:
    """Reads config.json and the index (or the only file's header); shards themselves may be absent."""
    directory = Path(directory)
    config = read_json(directory / "config.json")
    blocks = fp8_blocks(config, directory / "config.json")
    if "kv_lora_rank" not in config:
        raise OutriderError(
            f"{directory / 'config.json'}: architecture {config.get('architectures')} is not DeepSeek-V3's (no kv_lora_rank);"
            " an MTP speculator needs DeepseekV3ForCausalLM"
        )
    return CheckpointLayout(directory, config, weight_map(directory), blocks)


def fp8_blocks(config: dict[str, Any], path: Path) -> tuple[int, int] | None:
    """Rows and columns of a block as `quantization_config` has them ((128, 128) for DeepSeek), None where there is none.

    Everything but e4m3 blocks with dynamic activation scales is refused: its tensors would be read as something else.
    """
    found = config.get("quantization_config")
    if not found:
        return None
    blocks = found.get("weight_block_size")
    sound = (
        isinstance(blocks, list)
        and len(blocks) == 2
        and all(isinstance(n, int) and n > 0 for n in blocks)
    )
    # DeepSeek-V3.1 rounds its scales to powers of two (scale_fmt ue8m0), which quantizing here does not.
    expected = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "scale_fmt": None,
    }
    known = "quant_method" in found and all(
        found.get(key, value) == value for key, value in expected.items()
    )
    if not (sound and known):
        said = ", ".join(
            f"{key} {found[key]}" for key in (*expected, "weight_block_size") if key in found
        )
        raise OutriderError(
            f"{path}: quantization_config says the weights are quantized ({said}); training reads unquantized weights and"
            " DeepSeek's FP8 (quant_method fp8, fmt e4m3, weight_block_size [128, 128], no scale_fmt) only. Point target.model"
            " at such a checkpoint of the same model"
        )
    return blocks[0], blocks[1]


def weight_map(directory: Path) -> dict[str, str]:
    """Which file of the directory holds which tensor: the index, or the header of the only file (8 bytes of length, then JSON)."""
    index, single = directory / INDEX, directory / SINGLE
    if index.is_file():
        return read_json(index)["weight_map"]
    if not single.is_file():
        raise OutriderError(
            f"{directory}: neither {index.name} nor {single.name} is there; name a checkpoint's directory"
        )
    with single.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        return {
            name: single.name for name in json.loads(file.read(length)) if name != "__metadata__"
        }
