"""Names and files of a checkpoint's tensors. Reads no weights; no torch.

    layout = read_layout(directory)
    layout.files(target_tensors(layout))      # about 2 of R1's 163 shards

Only config.json and the safetensors index are read. Training needs the tensors of the target's own
speculator, the embedding and the head; the other 600 GB of R1 need not be on the training machine.
"""

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field
from safetensors import safe_open

from outrider.common.errors import OutriderError
from outrider.common.json_forms import read_form
from outrider.speculators.checkpoints.architectures import EMBEDDING, HEAD, architecture_of
from outrider.speculators.checkpoints.model_config import FIX, read_config

SCALE_SUFFIX = "_scale_inv"
"""Suffix of DeepSeek's scales; despite `inv`, values are multiplied by them."""

DERIVED = ".rotary_emb.inv_freq"
"""Rotary frequencies that some conversions store; not read, as config.json defines them."""

DEFAULTS_OF_FP8 = {"fmt": "e4m3", "activation_scheme": "dynamic", "scale_fmt": None}
"""Values of keys that `quantization_config` may leave out."""

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


CONFIG_FILES = ("config.json", "hf_quant_config.json")
"""Files that `read_target_config` reads; the second is optional."""


@dataclasses.dataclass(frozen=True)
class CheckpointLayout:
    """Names and files of a checkpoint's tensors, and its config.json."""

    directory: Path
    config: dict[str, Any]
    weight_map: dict[str, str]
    blocks: tuple[int, int] | None
    """Rows and columns of an FP8 block; None for unquantized weights and other formats."""

    @property
    def embedding_and_head(self) -> tuple[str, str]:
        """Names of the embedding and of the head."""
        return EMBEDDING, EMBEDDING if self.config.get("tie_word_embeddings") else HEAD

    @property
    def powers_of_two(self) -> bool:
        """True if FP8 scales are powers of two, as DeepSeek-V3.1's are."""
        return (self.config.get("quantization_config") or {}).get("scale_fmt") == "ue8m0"

    def files(self, names: Iterable[str]) -> list[str]:
        """Files of these tensors; raises an `OutriderError` if a tensor is missing."""
        needed = set(names)
        missing = needed - self.weight_map.keys()
        if missing:
            part = min(missing).removesuffix(".weight")
            packed = [name for name in self.weight_map if name.startswith(f"{part}.")]
            if packed:
                raise OutriderError(
                    f"{self.directory}: {part} is quantized ({', '.join(sorted(packed)[:3])}), and"
                    " its scales are not read; use a checkpoint of the same model whose embedding"
                    " and head are not quantized"
                )
            raise OutriderError(f"{self.directory}: the checkpoint has no tensor {min(missing)}")
        return sorted({self.weight_map[name] for name in needed})


def read_layout(directory: Path) -> CheckpointLayout:
    """Reads config.json and the tensor names; shards may be absent."""
    directory = Path(directory)
    config = read_target_config(directory)
    architecture_of(config, directory / "config.json")
    return CheckpointLayout(directory, config, weight_map(directory), _blocks(config))


def read_target_config(directory: Path) -> dict[str, Any]:
    """config.json, with the quantization of hf_quant_config.json if it names none.

    Model-Optimizer before 0.31 wrote the second file; vLLM 0.32 reads it (transformers_utils/
    config.py, get_config).
    """
    config = read_config(directory / CONFIG_FILES[0])
    path = directory / CONFIG_FILES[1]
    if config.get("quantization_config") is None and path.is_file():
        section = read_form(_Quantization, path, FIX).quantization or {}
        config["quantization_config"] = {"quant_method": "modelopt", **section}
    return config


def fp8_blocks(config: dict[str, Any], path: Path, otherwise: str = "") -> tuple[int, int] | None:
    """Rows and columns of an FP8 block; None without `quantization_config`.

    DeepSeek uses (128, 128). Formats other than e4m3 blocks with dynamic activation scales are
    refused, since their tensors would be misread; `otherwise` ends the error's advice.
    """
    quantization = config.get("quantization_config")
    blocks = _blocks(config)
    if not quantization or blocks is not None:
        return blocks
    keys = ("quant_method", *DEFAULTS_OF_FP8, "weight_block_size")
    judged = {key: quantization[key] for key in keys if quantization.get(key) is not None}
    raise OutriderError(
        f"{path}: quantization_config has {judged}: its draft layer is read unquantized or in"
        " DeepSeek's FP8 only (quant_method fp8, fmt e4m3, weight_block_size [128, 128]); point"
        f" target.model at such a checkpoint of the same model{otherwise}"
    )


def _blocks(config: dict[str, Any]) -> tuple[int, int] | None:
    """Rows and columns of DeepSeek's FP8 blocks; None for all other formats.

    Other formats keep embedding and head in bf16, which is all that training a head reads.
    """
    # `scale_fmt` came with DeepSeek-V3.1; R1's config.json lacks it.
    match DEFAULTS_OF_FP8 | (config.get("quantization_config") or {}):
        case {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "scale_fmt": None | "ue8m0",
            "weight_block_size": [int(rows), int(columns)],
        } if rows > 0 and columns > 0:
            return rows, columns
    return None


UNREAD_WEIGHTS = frozenset({".bin", ".gguf", ".pt", ".pth"})
"""Suffixes of weights in formats other than safetensors. Reading a pickle runs its code."""


EMBEDDING_FILES = ("modules.json", "config_sentence_transformers.json", "1_Pooling")
"""Files of sentence-transformers. Embedding models may have a text model's architecture in their
config.json (Qwen3-Embedding: Qwen3ForCausalLM)."""


def check_checkpoint(directory: Path) -> None:
    """Raises an `OutriderError` if a directory's files show that it is no target.

    A directory with config.json alone passes: plans need no weights.
    """
    marks = [name for name in EMBEDDING_FILES if (directory / name).exists()]
    if marks:
        raise OutriderError(
            f"{directory / marks[0]}: an embedding model of sentence-transformers, which writes no"
            " text; set target.model to the model that the endpoint generates with"
        )
    ggufs = sorted(
        file.name for file in directory.glob("*.gguf") if not file.name.startswith("imatrix")
    )
    if ggufs and not any(directory.glob("*.safetensors*")):  # or their index, before a download
        raise OutriderError(
            f"{directory / ggufs[0]}: only safetensors are read, and vLLM 0.32 loads no GGUF; set"
            " target.model to the checkpoint that it was made from"
        )


def fix_of_missing_weights(directory: Path) -> str:
    """What to do about a directory without its safetensors files."""
    unread = sorted(file.name for file in directory.glob("*") if file.suffix in UNREAD_WEIGHTS)
    if unread:
        return (
            f"{unread[0]} is not read: load its tensors and write them with"
            f" safetensors.torch.save_file as {SINGLE}"
        )
    return "use the directory of a complete checkpoint"


class _Index(BaseModel):
    """The index of a checkpoint's files."""

    # An index that is not this machine's may name any path.
    weight_map: dict[str, Annotated[str, Field(pattern=r"^[A-Za-z0-9_.+/ -]{1,255}$")]]


class _Quantization(BaseModel):
    """hf_quant_config.json."""

    quantization: dict[str, Any] | None = None


def read_index(path: Path) -> dict[str, str]:
    """The file of each tensor, from `INDEX`; raises an `OutriderError` if one is elsewhere."""
    fix = "copy it again from the checkpoint"
    files = read_form(_Index, path, fix).weight_map
    for name in files.values():
        if name.startswith("/") or ".." in name.split("/"):
            raise OutriderError(f"{path}: {name!r} is not in the checkpoint's folder; {fix}")
    return files


def weight_map(directory: Path) -> dict[str, str]:
    """File of each tensor, from the index or the single file's header."""
    index = directory / INDEX
    single = directory / SINGLE
    if index.is_file():
        return read_index(index)
    if not single.is_file():
        raise OutriderError(
            f"{directory}: neither {index.name} nor {single.name} exists;"
            f" {fix_of_missing_weights(directory)}"
        )
    with safe_open(single, "np") as file:
        return dict.fromkeys(file.keys(), single.name)
