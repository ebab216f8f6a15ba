"""A cached random target for a config.json, with DeepSeek's tensor names.

    directory = random_target(config)       # ~/.cache/outrider/rehearsal/DIGEST

The package does not include R1's tokenizer. The embedded target's is extended with unused tokens to
the config's vocabulary, so texts have ids below 4,096 and every sampled id can be decoded.
"""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.common.files import publish, read_json, write_json
from outrider.common.fingerprint import value_digest
from outrider.serving.config import EMBEDDED_TARGETS
from outrider.speculators.checkpoints.layout import SCALE_SUFFIX

if TYPE_CHECKING:
    import torch

SHARD_BYTES = 1_000_000_000
STD = 0.02
VERSION = 1
"""Increment it when the weights change, to invalidate cached targets."""

TOKENIZER_FILES = ("chat_template.jinja", "generation_config.json", "tokenizer_config.json")
UNQUANTIZED = ("eh_proj", "mlp.gate.", "norm", "embed_tokens", "lm_head", "shared_head")
"""Name parts of tensors that DeepSeek keeps in bf16."""


def random_target(config: Mapping[str, Any], cache: Path | None = None) -> Path:
    """The checkpoint's directory, written on first use."""
    cache = cache or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "outrider"
    directory = cache / "rehearsal" / value_digest([VERSION, config])[:16]
    if not directory.is_dir():
        write_random_target(config, directory)
    return directory


def write_random_target(config: Mapping[str, Any], directory: Path) -> None:
    """Publishes config.json, tokenizer and seeded random weights at `directory`."""
    from huggingface_hub import save_torch_state_dict

    embedded = EMBEDDED_TARGETS["nano_r1"]
    small = read_json(embedded / "config.json")
    ids = {name: small[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
    directory.parent.mkdir(parents=True, exist_ok=True)
    with publish(directory) as temporary:
        temporary.mkdir()
        write_json(temporary / "config.json", dict(config) | ids)
        for name in TOKENIZER_FILES:
            shutil.copyfile(embedded / name, temporary / name)
        tokenizer = read_json(embedded / "tokenizer.json")
        extend_vocabulary(tokenizer, config["vocab_size"])
        write_json(temporary / "tokenizer.json", tokenizer)
        save_torch_state_dict(dict(_tensors(config)), temporary, max_shard_size=SHARD_BYTES)


def extend_vocabulary(tokenizer: dict[str, Any], size: int) -> None:
    """Adds unused tokens to a tokenizer.json until it has `size` tokens."""
    vocabulary = tokenizer["model"]["vocab"]
    # On loading, an added token that is not in the vocabulary gets the next free id.
    vocabulary |= {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    taken = set(vocabulary.values())
    vocabulary |= {f"unused-{number}": number for number in range(size) if number not in taken}


def _tensors(config: Mapping[str, Any]) -> "Iterator[tuple[str, torch.Tensor]]":
    """Yields (name, values) of every weight."""
    import torch

    from outrider.speculators.checkpoints.fp8 import quantize

    quantization = config.get("quantization_config")
    generator = torch.Generator().manual_seed(0)
    for name, shape in shapes(config).items():
        if name.endswith("norm.weight"):
            yield name, torch.ones(shape, dtype=torch.bfloat16)
        elif name.endswith("e_score_correction_bias"):
            yield name, torch.zeros(shape)
        else:
            weight = torch.empty(shape, dtype=torch.bfloat16).normal_(std=STD, generator=generator)
            if quantization is None or any(part in name for part in UNQUANTIZED):
                yield name, weight
                continue
            rows, columns = quantization["weight_block_size"]
            powers_of_two = quantization.get("scale_fmt") == "ue8m0"
            value, scale = quantize(weight, (rows, columns), powers_of_two)
            yield name, value
            yield name + SCALE_SUFFIX, scale


def shapes(config: Mapping[str, Any]) -> "dict[str, torch.Size]":
    """Shapes of all weights by name, from modules on the meta device."""
    import torch

    from outrider.speculators.kinds.mtp.checkpoint import experts_apart, mtp_checkpoint_tensors
    from outrider.speculators.kinds.mtp.layer import MTPSpeculator
    from outrider.speculators.layers.decoder_layer import DecoderLayer

    layers = config["num_hidden_layers"]
    ends = torch.Size([config["vocab_size"], config["hidden_size"]])
    shapes_by_name = {
        "model.embed_tokens.weight": ends,
        "lm_head.weight": ends,
        "model.norm.weight": ends[1:],
    }
    with torch.device("meta"):
        for index in range(layers):
            for suffix, tensor in DecoderLayer(config, index).state_dict().items():
                for name, view in experts_apart(suffix, tensor).items():
                    shapes_by_name[f"model.layers.{index}.{name}"] = view.shape
        for suffix, view in mtp_checkpoint_tensors(MTPSpeculator(config).state_dict()).items():
            shapes_by_name[f"model.layers.{layers}.{suffix}"] = view.shape
    return shapes_by_name
