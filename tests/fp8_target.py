"""An FP8 copy of a target in DeepSeek's layout: linear layers in blocks of 128 x 128.

    write_fp8_copy(nano_r1, tmp_path / "target")

The scales differ from those that our quantization would choose, so that a tensor that was
quantized again is noticed.
"""

import json
import re
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

BLOCK = 128
QUANTIZATION = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [BLOCK, BLOCK],
}
"""DeepSeek-R1's own quantization_config."""

LINEAR = re.compile(r"model\.layers\.\d+\.(self_attn|mlp)\..*proj.*\.weight$")
"""What DeepSeek quantizes: neither norms nor the router nor eh_proj, embedding and head."""


def write_fp8_copy(source: Path, directory: Path, scale_fmt: str | None = None) -> Path:
    """The copy's directory; files and index as the source has them, scales beside their weights.

    With `scale_fmt` "ue8m0" the scales are powers of two, as DeepSeek-V3.1's are.
    """
    quantization = QUANTIZATION | ({"scale_fmt": scale_fmt} if scale_fmt else {})
    shutil.copytree(source, directory)
    weight_map = {}
    for shard in sorted(directory.glob("*.safetensors")):
        tensors: dict[str, Tensor] = {}
        for name, tensor in load_file(shard).items():
            if LINEAR.match(name):
                tensors[name], tensors[name + "_scale_inv"] = coarse(tensor.float(), scale_fmt)
            else:
                tensors[name] = tensor
        save_file(tensors, shard, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, shard.name)
    if (index := directory / "model.safetensors.index.json").is_file():
        index.write_text(json.dumps({"weight_map": weight_map}))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(
        json.dumps(config | {"quantization_config": quantization}, indent=2)
    )
    return directory


def coarse(
    weight_OI: Tensor, scale_fmt: str | None = None, stretch: float = 2.6
) -> tuple[Tensor, Tensor]:
    """e4m3 values and scales `stretch` times as large as they need be, or powers of two below."""
    scale = torch.stack(
        [
            torch.stack([block.abs().max() * stretch / 448 for block in rows.split(BLOCK, dim=1)])
            for rows in weight_OI.split(BLOCK)
        ]
    )
    if scale_fmt:
        scale = scale.log2().floor().exp2()
    return (weight_OI / spread(scale, weight_OI.shape)).to(torch.float8_e4m3fn), scale


def spread(scale_PQ: Tensor, shape: torch.Size) -> Tensor:
    """Every element's own scale, [O, I]."""
    return scale_PQ.repeat_interleave(BLOCK, 0)[: shape[0]].repeat_interleave(BLOCK, 1)[
        :, : shape[1]
    ]
