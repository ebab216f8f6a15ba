"""Shared memory of flex attention's Triton kernels on a GPU that need not be here.

    shared_bytes("forward", (8, 9), torch.float32, (128, 128), kernel_options)

Renders torch's own templates with torch's default tiles and `FlexPrefix`'s mask, and compiles them
with Triton's NVIDIA backend, which needs no driver. Only Inductor's code around the templates is
replaced, by `_hooks`.
"""

import functools
import hashlib
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Literal
from unittest import mock

import jinja2
import torch
import triton
from torch._inductor.kernel.flex.common import load_flex_template, next_power_of_two
from torch._inductor.template_heuristics.triton import CUDAConfigHeuristic
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from outrider.speculators.layers.prefix_attention import BLOCK

Direction = Literal["forward", "backward"]

TEMPLATES: dict[Direction, tuple[str, ...]] = {
    "forward": ("flex_attention", "utilities", "common"),
    "backward": ("flex_backwards", "utilities"),
}
POINTERS = ("START", "PLACE", "OUT")
"""Arguments after the template's own: the mask's two tensors and the output."""
SIZES = ("HEADS", "QUERIES", "TOKENS", "BLOCKS")
FLOAT32 = ("LSE", "MAX", "DELTA")
MASK_TENSORS = ("KV_NUM_BLKS", "KV_IDX", "Q_NUM_BLKS", "Q_IDX")


def shared_bytes(
    direction: Direction,
    capability: tuple[int, int],
    dtype: torch.dtype,
    widths: tuple[int, int],
    options: Mapping[str, Any],
) -> int:
    """Bytes of shared memory per block. `widths` are those of a query and of a value."""
    tiles = tiles_of(direction, capability, dtype, widths[0], options)
    launch = {name: tiles.pop(name) for name in ("num_stages", "num_warps")}
    constants = _constants(dtype, widths) | tiles
    kernel = _module(_rendered(direction, constants, widths)).kernel
    floats = {torch.float32: "*fp32", torch.bfloat16: "*bf16"}[dtype]
    signature = {name: _type(name, floats) for name in kernel.arg_names}
    # Inductor specializes aligned pointers, which lets Triton copy 16 bytes at a time.
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(kernel.arg_names)
        if name not in SIZES
    }
    target = GPUTarget("cuda", capability[0] * 10 + capability[1], 32)
    source = ASTSource(kernel, signature, attrs=aligned)
    return int(triton.compile(source, target=target, options=launch).metadata.shared)


def tiles_of(
    direction: Direction,
    capability: tuple[int, int],
    dtype: torch.dtype,
    width: int,
    options: Mapping[str, Any],
) -> dict[str, Any]:
    """Torch's default tiles, replaced by `options` as the lowering of flex attention does."""
    heuristics = CUDAConfigHeuristic()
    with mock.patch("torch.cuda.get_device_capability", return_value=capability):
        if direction == "forward":
            [config] = heuristics.get_flex_attn_fwd_configs(width, dtype)
            names = {"BLOCK_M": "block_m", "BLOCK_N": "block_n"}
        else:
            [config] = heuristics.get_flex_attn_bwd_configs(width, dtype)
            names = {f"BLOCK_{side}": f"block_{side.lower()}" for side in ("M1", "N1", "M2", "N2")}
    names |= {"num_stages": "num_stages", "num_warps": "num_warps"}
    prefix = "fwd_" if direction == "forward" else "bwd_"
    return {
        name: options.get(prefix + name, getattr(config, field)) for name, field in names.items()
    }


def _constants(dtype: torch.dtype, widths: tuple[int, int]) -> dict[str, Any]:
    query, value = widths
    return {
        "FLOAT32_PRECISION": "'ieee'",
        "GQA_SHARED_HEADS": 1,
        "HAS_FULL_BLOCKS": True,
        "INDEX_DTYPE": "tl.int32",
        "IS_DIVISIBLE": False,
        "OUTPUT_LOGSUMEXP": True,
        "OUTPUT_MAX": False,
        "PRESCALE_QK": False,
        "ROWS_GUARANTEED_SAFE": False,
        "BLOCKS_ARE_CONTIGUOUS": False,
        "WRITE_DQ": True,
        "SM_SCALE": 0.125,
        "SPARSE_Q_BLOCK_SIZE": BLOCK,
        "SPARSE_KV_BLOCK_SIZE": BLOCK,
        "QK_HEAD_DIM": query,
        "QK_HEAD_DIM_ROUNDED": next_power_of_two(query),
        "V_HEAD_DIM": value,
        "V_HEAD_DIM_ROUNDED": next_power_of_two(value),
        "SAFE_HEAD_DIM": all(width == next_power_of_two(width) for width in widths),
    }


def _rendered(direction: Direction, constants: Mapping[str, Any], widths: tuple[int, int]) -> str:
    text = "\n".join(load_flex_template(name) for name in TEMPLATES[direction])
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined)
    environment.filters["indent_except_first"] = lambda text, levels: text.replace(
        "\n", "\n" + "    " * levels
    )
    hooks = _hooks(constants, widths)
    flags = {"USE_TMA": False, "HAS_FULL_BLOCKS": True}
    return "import triton\nimport triton.language as tl\n\n" + environment.from_string(text).render(
        **hooks, **flags
    )


def _hooks(constants: Mapping[str, Any], widths: tuple[int, int]) -> dict[str, Callable[..., str]]:
    """What Inductor offers its templates, for contiguous tensors."""
    defines = "\n".join(f"{name}: tl.constexpr = {value}" for name, value in constants.items())
    arguments: list[str] = []

    def def_kernel(*names: str) -> str:
        arguments.extend([*(f"arg_{name}" for name in names), *POINTERS, *SIZES])
        body = [*defines.split("\n"), *(f"{name} = arg_{name}" for name in names)]
        return f"@triton.jit\ndef kernel({', '.join(arguments)}):\n    " + "\n    ".join(body)

    def size(name: str, axis: int) -> str:
        length = "QUERIES" if name == "Q" else "TOKENS"
        return {0: "1", 1: "1" if name in MASK_TENSORS else "HEADS", 2: length}[axis]

    def stride(name: str, axis: int | None = None) -> str:
        if axis is not None:  # of a mask tensor
            return "BLOCKS"
        width = widths[0] if name in ("Q", "K", "DQ") else widths[1]
        length = "QUERIES" if name in ("Q", "DO", "DQ") else "TOKENS"
        return f"{width} * {length} * HEADS, {width} * {length}, {width}, 1"

    def modification(subgraph_number: int, output_name: str | None, **names: Any) -> str:
        if output_name is None:  # the mask's tensors have no gradient
            return "pass"
        if output_name != "mask_mod_output":  # without a score_mod, scores stay as they are
            source = names.get("grad_score_mod") or names["score"]
            return f"{output_name} = {source}"
        m = names["m"]
        n = names["n"]
        return f"{output_name} = ({n} >= tl.load(START + {m})) & ({n} <= tl.load(PLACE + {m}))"

    def store_output(indices: tuple[str, ...], value: str, mask: str, **_: Any) -> str:
        width = "QK_HEAD_DIM" if value == "dk" else "V_HEAD_DIM"
        length = "TOKENS" if value == "dk" else "QUERIES"
        _, head, row, column = indices
        return f"tl.store(OUT + ({head} * {length} + {row}) * {width} + {column}, {value}, {mask})"

    return {
        "def_kernel": def_kernel,
        "size": size,
        "stride": stride,
        "modification": modification,
        "store_output": store_output,
        "gen_argdefs": lambda: ", ".join(arguments),
        "gen_defines": lambda: defines,
    }


def _type(name: str, floats: str) -> str:
    if name in SIZES:
        return "i32"
    if name in ("START", "PLACE"):
        return "*i64"
    name = name.removeprefix("arg_")
    if name in FLOAT32:
        return "*fp32"
    return "*i32" if name.removeprefix("FULL_") in MASK_TENSORS else floats


@functools.cache
def _module(source: str) -> ModuleType:
    """Imports source text from a file, which Triton reads again."""
    name = "flex_" + hashlib.sha256(source.encode()).hexdigest()[:16]
    path = Path(tempfile.mkdtemp()) / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
