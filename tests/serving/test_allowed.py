"""What vLLM's own parser makes of the values that a bundle may set."""

import argparse
import dataclasses
import enum
import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.common.errors import OutriderError
from outrider.serving import allowed
from outrider.serving.allowed import OF_BUNDLES, argument_refusal, bundle_argument_refusal
from outrider.serving.serve_flags import without_quotes
from outrider.serving.vllm_arguments import flags_of

ORDINARY = {
    allowed._flag: [True, False],
    allowed._integer: [1, 16, -1, 2**40],
    allowed._number: [0.5, 1, 4.0],
    allowed._word: ["bfloat16", "FLASHMLA", "deep_gemm", "fp8", "mp"],
    allowed._integers: [[1], [1, 2, 4]],
}
OBJECTS: dict[str, list[dict[str, Any]]] = {
    "attention_config": [{"backend": "FLASHMLA"}, {"flash_attn_version": 3}],
    "compilation_config": [
        {"mode": 3, "cudagraph_mode": "FULL_AND_PIECEWISE", "cudagraph_capture_sizes": [1, 2]},
        {"custom_ops": ["none", "+rms_norm", "-rotary_embedding"], "compile_sizes": [1]},
        {"pass_config": {"fuse_norm_quant": True, "eliminate_noops": False}},
    ],
    "eplb_config": [{"num_redundant_experts": 32, "log_balancedness": True}],
    "hf_overrides": [
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 1000000,
                "original_max_position_embeddings": 32768,
                "truncate": False,
            },
            "max_position_embeddings": 131072,
        },
        {"rope_scaling": {"type": "yarn", "factor": 2.5, "mscale": 1e-05}},
    ],
    "kernel_config": [{"enable_flashinfer_autotune": False, "moe_backend": "cutlass"}],
    "limit_mm_per_prompt": [{"image": 0, "video": 0}],
    "override_generation_config": [{"temperature": 0.6, "top_p": 0.95, "top_k": -1}],
    "structured_outputs_config": [
        {"backend": "xgrammar", "disable_any_whitespace": True, "reasoning_parser": "deepseek_r1"}
    ],
}
EVIL = "march.notes.f"
CODE = (
    '{"inductor_passes": {"x": "march.notes.f"}}',
    '{"reasoning_parser_plugin": "/mnt/speculator/notes.py"}',
)
"""JSON that makes vLLM import code."""
HOSTILE = [
    *CODE,
    *(f" \t\n\u00a0{text}" for text in CODE),
    *(f"\ufeff{text}" for text in CODE),
    *(f"{prefix}inductor_passes.x={EVIL}" for prefix in ("-cc.", "--compilation-config.", "-cc:")),
    *("-sc.model=evil/x", "-q", "-O3", "--middleware=evil.M", "--middle", "--mod", "—", "@args"),
    *("--config", "--no-enable-eplb", "-", "--", "evil/x", "/mnt/speculator", "../x", "a.b", ""),
    *("$(HF_TOKEN)", "${HF_TOKEN}", "`id`", "a b", "a\nb", "a\x00b", "ｆｐ８", "16", "1k", "1e5"),
    *("true", "null", "None", "NaN", "Infinity", "[1]", '"x"', "<img>", "١٦"),
    *(10**400, 2**63, -2, -1e-05, float("nan"), float("inf"), True, 1.5, [], {}, [[]], [{}]),
    *([text] for text in CODE),
    *(["1", f"-cc.inductor_passes.x={EVIL}"], [1, True], [1, "2"], [1, None], [None], [1.5]),
    *({key: EVIL} for key in ("inductor_passes", "inductor_compile_config", "backend", "auto_map")),
    {"post_grad_custom_post_pass": EVIL},
    {"inductor_compile_config": {"cpp.cxx": ["/mnt/speculator/cxx"], "cuda.cutlass_dir": "/mnt"}},
    {"pass_config": {"x": EVIL}},
    {"pass_config": {"pass-config.x": True}},
    {"custom_ops": [f"none,{EVIL}", "--x"]},
    {"cudagraph_capture_sizes": "[1]"},
    {"custom_ops+": ["none"]},
    {"mode": True},
    {"mode": {"inductor_passes": EVIL}},
    {"custom-ops": ["none"]},
    {"rope_parameters": {"auto_map": {"x": EVIL}}},
    {"rope_parameters": {"rope_type": "../../x"}},
    {"rope_parameters": {"factor": float("nan")}},
    {"reasoning_parser_plugin": "/mnt/speculator/notes.py"},
    {"reasoning_parser": "theirs"},
    {"architectures": ["Evil"]},
]  # fmt: skip


def ordinary(name: str) -> list[Any]:
    """Values of `name` that a bundle may set."""
    if name in OBJECTS:
        return [*OBJECTS[name], {}]
    if choices := actions()[name].choices:
        return [choice for choice in choices if isinstance(choice, str)]
    if (values := ORDINARY.get(OF_BUNDLES[name])) is not None:
        return values
    return {
        "distributed_executor_backend": ["mp", "ray"],
        "generation_config": ["auto", "vllm"],
        "model_impl": ["auto", "vllm"],
        "optimization_level": [0, "3"],
        "tokenizer_mode": ["auto", "mistral"],
    }[name]


@functools.cache
def parser() -> Any:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    class Parser(FlexibleArgumentParser):
        def error(self, message: str) -> Any:
            raise ValueError(message)

    made = make_arg_parser(Parser())
    for action in made._actions:
        action.default = argparse.SUPPRESS
    return made


@functools.cache
def actions() -> dict[str, Any]:
    return {action.dest: action for action in parser()._actions}


def plain(value: Any) -> Any:
    """Enums by name or number, as JSON has them, and objects without their defaults."""
    if isinstance(value, enum.IntEnum):
        return int(value)
    if isinstance(value, enum.Enum):
        return value.name
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    return value


def assert_set(found: Any, value: Any, default: Any) -> None:
    """`found` is `value`; fields of objects that `value` does not name have their defaults."""
    if isinstance(value, dict):
        assert value.keys() <= found.keys()
        for key, inner in found.items():
            if key not in value:
                assert inner == default.get(key), key
            else:
                assert_set(inner, value[key], default.get(key) if default else {})
    else:
        assert found == value or str(found) == value


def assert_parsed_to(name: str, value: Any) -> None:
    """From both forms of the flags, vLLM sets `name` to `value` and nothing else."""
    groups = flags_of({name: value})
    for words in ([word for group in groups for word in group], without_quotes(groups).split()):
        parsed = vars(parser().parse_args(["--port", "8000", *words]))
        assert parsed.pop("port") == 8000
        if words:
            found = parsed.pop(name)
            # vLLM's own defaults of an object, which is what `{}` is parsed to.
            empty = plain(type(found)()) if dataclasses.is_dataclass(found) else {}
            assert_set(plain(found), str(value) if isinstance(found, str) else value, empty)
        assert not parsed


@pytest.mark.parametrize("name", OF_BUNDLES)
def test_vllm_reads_what_a_bundle_may_set_and_nothing_else(name: str) -> None:
    tried = 0
    for value in ordinary(name):
        assert bundle_argument_refusal(name, value) is None, value
        try:
            assert_parsed_to(name, value)
            tried += 1
        except ValueError as error:
            assert "invalid" in str(error)  # a word that is not one of vLLM's choices
    assert tried
    for value in HOSTILE:
        # What is not refused is harmless: it is set as it is. vLLM may refuse it.
        if bundle_argument_refusal(name, value) is None:
            try:
                assert_parsed_to(name, value)
            except ValueError as error:
                assert "invalid" in str(error)
    for text in CODE:
        for value in (text, [text], [1, text], f" {text}", [f"-cc.inductor_passes.x={EVIL}"]):
            assert bundle_argument_refusal(name, value), value


names = st.sampled_from(sorted(OF_BUNDLES))
texts = st.text(max_size=12) | st.sampled_from([text for text in HOSTILE if isinstance(text, str)])
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
keys = texts | st.sampled_from(
    [key for values in OBJECTS.values() for value in values for key in value]
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)
)


@settings(max_examples=300, deadline=None)
@given(names, values)
def test_any_value_is_refused_or_read_by_vllm_as_it_is(name: str, value: Any) -> None:
    if bundle_argument_refusal(name, value) is None:
        try:
            assert_parsed_to(name, value)
        except (ValueError, OutriderError) as error:
            assert "invalid" in str(error)


def test_the_arguments_of_bundles_are_vllm_s_and_those_that_recipes_may_set() -> None:
    from vllm.reasoning import _REASONING_PARSERS_TO_REGISTER

    assert OF_BUNDLES.keys() <= allowed.ARGUMENTS | allowed.KEYS_OF_ARGUMENTS.keys()
    assert OF_BUNDLES.keys() <= actions().keys()
    assert set(allowed.REASONING_PARSERS) == set(_REASONING_PARSERS_TO_REGISTER)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("compilation_config", CODE[0]),
        ("structured_outputs_config", " " + CODE[1]),
        ("cudagraph_capture_sizes", ["1", f"-cc.inductor_passes.x={EVIL}"]),
        ("quantization", "-q"),
        ("compilation_config", {"inductor_passes_pass": EVIL, "post_grad_custom_post_pass": EVIL}),
        ("compilation_config", {"inductor_compile_config": {"cuda.cutlass_dir": "/mnt"}}),
        ("hf_overrides", {"TRUST_remote_code": True}),
    ],
)
def test_a_recipe_names_no_code_and_hides_no_flag(name: str, value: Any) -> None:
    assert name in str(argument_refusal(name, value))
