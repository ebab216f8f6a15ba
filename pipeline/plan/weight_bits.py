"""Bits per weight of quantized checkpoints, with their scales, as vLLM 0.32 loads them.

    bits = WeightBits.of(config)                                 # of config.json
    bits("model.layers.0.mlp.up_proj", columns=5120)             # 4.156: 4 + (16 + 4) / 128

The formats are those of `vllm/model_executor/layers/quantization`; bitsandbytes is counted too,
which plug-ins add. A format that is not known is counted as unquantized, the safe side.
"""

import dataclasses
import fnmatch
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

UNQUANTIZED = 16.0
"""Bits of a bf16 or fp16 weight."""

SKIPPED = (
    "ignore", "exclude", "exclude_modules", "ignored_layers", "modules_to_not_convert",
    "llm_int8_skip_modules",
)  # fmt: skip
"""Keys with modules that stay unquantized, one for each producer."""

SUBSTRINGS = {"awq", "awq_marlin", "auto_awq", "modelopt", "modelopt_fp4", "bitsandbytes"}
"""Methods for which part of a module's name in `SKIPPED` suffices (vLLM, `is_layer_skipped`)."""

EXPERTS_ONLY = {"mxfp4", "gpt_oss_mxfp4", "experts_int8"}
"""Methods that quantize routed experts and nothing else."""


@dataclasses.dataclass(frozen=True)
class Scheme:
    """How one weight matrix is stored."""

    bits: float
    scale_bits: float = 0.0
    """Of a group's scale and zero point."""
    group: float = math.inf
    """Weights with one scale: inf for all of a matrix, 0 for a row, else that many."""

    def per_weight(self, columns: int) -> float:
        """Bits per weight of a matrix with that many inputs."""
        return self.bits + self.scale_bits / (self.group or columns)


@dataclasses.dataclass(frozen=True)
class WeightBits:
    """Bits per weight by module."""

    default: Scheme | None
    """None: only what `by_pattern` lists is quantized."""
    by_pattern: tuple[tuple[str, Scheme], ...] = ()
    """Schemes of modules that a pattern selects, before the default."""
    skipped: tuple[str, ...] = ()
    method: str = ""
    head: bool = False
    """Whether the default holds for lm_head too."""

    @classmethod
    def of(cls, config: Mapping[str, Any], online: str | None = None) -> "WeightBits":
        """The format of a config.json, or that of `--quantization` for unquantized weights."""
        section = config.get("quantization_config") or config.get("compression_config")
        if not section:
            return cls(ONLINE.get(online or ""), method=online or "")
        method = str(section.get("quant_method", ""))
        skipped = [name for key in SKIPPED for name in section.get(key) or []]
        dynamic = section.get("dynamic") or {}  # GPTQModel: "-:pattern" leaves modules out
        skipped += [f"re:{name[2:]}" for name in dynamic if name.startswith("-:")]
        default, by_pattern = READERS.get(method, _unknown)(section)
        return cls(
            default=default,
            by_pattern=by_pattern,
            skipped=tuple(map(str, skipped)),
            method=method,
            head=bool(section.get("lm_head")) or method.startswith("modelopt"),
        )

    def __call__(self, module: str, columns: int) -> float:
        """Bits per weight of a module, scales included; 16 if it is not quantized."""
        if self._is_skipped(module):
            return UNQUANTIZED
        for pattern, scheme in self.by_pattern:
            if _matches(module, pattern):
                return scheme.per_weight(columns)
        is_expert = ".experts." in module
        if self.default is None or (self.method in EXPERTS_ONLY and not is_expert):
            return UNQUANTIZED
        if module == "lm_head" and not self.head:
            return UNQUANTIZED
        return self.default.per_weight(columns)

    def _is_skipped(self, module: str) -> bool:
        part = self.method in SUBSTRINGS
        names = [module]
        if ".experts." in module:  # producers name each expert's matrices
            prefix = module.partition(".experts.")[0]
            names += [f"{prefix}.experts", f"{prefix}.experts.0.{module.rpartition('.')[2]}"]
            names += [f"{prefix}.experts.0.{name}_proj" for name in ("gate", "up")]
        return any(
            _matches(name, pattern) or (part and pattern in name)
            for pattern in self.skipped
            for name in names
        )


def _matches(module: str, pattern: str) -> bool:
    """Whether a name, a `re:` expression or a wildcard selects the module."""
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    return module == pattern or fnmatch.fnmatchcase(module, pattern)


Format = tuple[Scheme | None, tuple[tuple[str, Scheme], ...]]
"""The scheme of all linear layers, and those of modules that patterns select."""


def _unknown(section: Mapping[str, Any]) -> Format:
    bits = section.get("bits")
    return (Scheme(bits) if isinstance(bits, int) else None), ()


def _integers_with_zeros(section: Mapping[str, Any]) -> Format:
    """AWQ and GPTQ: a 16-bit scale and a packed zero point for each group of inputs."""
    bits = section.get("bits") or section.get("w_bit") or 4
    group = section.get("group_size") or section.get("q_group_size") or 128
    return Scheme(bits, 16 + bits, max(group, 0)), ()


def _compressed_tensors(section: Mapping[str, Any]) -> Format:
    default = None
    by_pattern = []
    for group in (section.get("config_groups") or {}).values():
        packing = group.get("format") or section.get("format") or ""
        scheme = _of_weights(group.get("weights") or {}, packing)
        for target in group.get("targets") or ["Linear"]:
            if target == "Linear":
                default = scheme
            else:
                by_pattern.append((target, scheme))
    return default, tuple(by_pattern)


def _of_weights(weights: Mapping[str, Any], packing: str) -> Scheme:
    """A group's `weights`; without `strategy`, a group size decides, as in compressed-tensors."""
    bits = weights.get("num_bits") or 16
    group = weights.get("group_size") or 0
    strategy = weights.get("strategy") or ("group" if group > 0 else "channel")
    scale = 8 if "fp4" in packing or strategy == "tensor_group" else 16  # e4m3 or e8m0, or bf16
    if weights.get("symmetric") is False:
        scale += bits
    if strategy == "block":
        return Scheme(bits, scale, math.prod(weights.get("block_structure") or (128, 128)))
    if strategy == "tensor":
        return Scheme(bits)
    return Scheme(bits, scale, group if "group" in strategy else 0)


def _fp8(section: Mapping[str, Any]) -> Format:
    block = section.get("weight_block_size")
    return (Scheme(8, 32, math.prod(block)) if block else Scheme(8)), ()


def _modelopt(section: Mapping[str, Any]) -> Format:
    """NVIDIA Model-Optimizer; `quantized_layers` names each layer of a mixed checkpoint."""
    by_pattern = tuple(
        (name, scheme)
        for name, layer in (section.get("quantized_layers") or {}).items()
        if (scheme := _of_algorithm(layer)) is not None
    )
    return _of_algorithm(section), by_pattern


def _of_algorithm(section: Mapping[str, Any]) -> Scheme | None:
    algorithm = str(section.get("quant_algo", "")).upper()
    group = section.get("group_size")
    for name, scheme in ALGORITHMS.items():
        if name in algorithm:
            if not isinstance(group, int) or scheme.group in (0, math.inf):
                return scheme
            return dataclasses.replace(scheme, group=group)
    return None


def _bitsandbytes(section: Mapping[str, Any]) -> Format:
    """A float32 maximum for 64 weights, or with double quantization 8 bits and one for 256."""
    if not section.get("load_in_4bit"):
        return Scheme(8, 32, 0), ()
    double = section.get("bnb_4bit_use_double_quant")
    return Scheme(4, 8 + 32 / 256 if double else 32, 64), ()


def _quark(section: Mapping[str, Any]) -> Format:
    """AMD Quark: `dtype` such as fp4 or fp8_e4m3, with scales by group or row."""
    weight = (section.get("global_quant_config") or {}).get("weight") or {}
    weight = weight[0] if isinstance(weight, list) else weight
    digits = re.search(r"\d+", str(weight.get("dtype", "")))
    if digits is None:
        return None, ()
    group = weight.get("group_size") or 0
    by_group = group > 0 and "group" in str(weight.get("qscheme"))
    scale = 8 if weight.get("scale_format") == "e8m0" else 16
    return Scheme(int(digits[0]), scale, group if by_group else 0), ()


def _mxfp4(section: Mapping[str, Any]) -> Format:
    return MXFP4, ()


def _rows_of_8_bits(section: Mapping[str, Any]) -> Format:
    return Scheme(8, 32, 0), ()


MXFP4 = Scheme(4, 8, 32)
"""OCP microscaling: an e8m0 scale for 32 weights."""
NVFP4 = Scheme(4, 8, 16)
"""An e4m3 scale for 16 weights."""

ALGORITHMS = {
    "NVFP4": NVFP4,
    "MXFP4": MXFP4,
    "MXFP8": Scheme(8, 8, 32),
    "FP8_PB": Scheme(8, 32, 128**2),
    "FP8": Scheme(8, 32, 0),
    "W4A": Scheme(4, 16, 128),
    "INT4": Scheme(4, 16, 128),
    "W8A": Scheme(8, 16, 0),
    "INT8": Scheme(8, 16, 0),
}
"""Model-Optimizer's `quant_algo`, by the first part that the name contains."""

ONLINE = {
    "fp8": Scheme(8),
    "fp8_per_tensor": Scheme(8),
    "fp8_per_block": Scheme(8, 32, 128**2),
    "fp8_per_channel": Scheme(8, 32, 0),
    "int8_per_channel_weight_only": Scheme(8, 32, 0),
    "nvfp4_per_token": NVFP4,
    "mxfp8": Scheme(8, 8, 32),
    "mxfp4": MXFP4,
    "experts_int8": Scheme(8, 32, 0),
}
"""`--quantization` of an unquantized checkpoint, which vLLM quantizes when it loads it."""

READERS: dict[str, Callable[[Mapping[str, Any]], Format]] = {
    **dict.fromkeys(("awq", "awq_marlin", "auto_awq"), _integers_with_zeros),
    **dict.fromkeys(("gptq", "gptq_marlin", "auto_gptq"), _integers_with_zeros),
    **dict.fromkeys(("inc", "auto-round", "moe_wna16"), _integers_with_zeros),
    "compressed-tensors": _compressed_tensors,
    "fp8": _fp8,
    "fbgemm_fp8": _rows_of_8_bits,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "bitsandbytes": _bitsandbytes,
    "quark": _quark,
    "mxfp4": _mxfp4,
    "gpt_oss_mxfp4": _mxfp4,
    "experts_int8": _rows_of_8_bits,
}
"""By `quant_method`."""
