"""The rotary embedding of heads, bit for bit vLLM's, from config.json as heads have it."""

import copy
import os
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope

from outrider.speculators.layers.rope import head_rope, refused_rope
from outrider.speculators.layers.rotary import Rotary
from tests.distill_configs import LLAMA3

# Of Qwen3's card for 131,072 positions.
QWEN_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}

factors = st.floats(1.5, 40)
SCALINGS: st.SearchStrategy[dict[str, Any] | None] = st.one_of(
    st.none(),
    st.just(LLAMA3),
    st.just(QWEN_YARN),
    st.fixed_dictionaries({"rope_type": st.sampled_from(["linear", "dynamic"]), "factor": factors}),
    st.fixed_dictionaries(
        {
            "rope_type": st.just("llama3"),
            "factor": factors,
            "low_freq_factor": st.sampled_from([1.0, 4.0]),
            "high_freq_factor": st.just(4.0),
        },
        optional={"original_max_position_embeddings": st.sampled_from([64, 8192])},
    ),
    st.fixed_dictionaries(
        {"type": st.just("yarn"), "factor": factors},
        optional={
            "original_max_position_embeddings": st.sampled_from([64, 4096]),
            "beta_fast": st.sampled_from([16, 32]),
            "beta_slow": st.sampled_from([1, 2]),
            "mscale": st.sampled_from([0.7, 1.0]),
            "mscale_all_dim": st.sampled_from([0.5, 1.0]),
            "attention_factor": st.floats(0.5, 2),
            "truncate": st.booleans(),
        },
    ),
)


@pytest.fixture(autouse=True, scope="module")
def environment() -> Iterator[None]:
    """vLLM's CPU platform sets variables for processes that start later (platforms/cpu.py)."""
    with mock.patch.dict(os.environ):
        yield


@settings(deadline=None, max_examples=40)
@given(
    scaling=SCALINGS,
    theta=st.sampled_from([None, 1e4, 5e5, 1e6]),
    share=st.sampled_from([None, 0.25, 0.5, 1.0]),
    key=st.sampled_from(["rope_scaling", "rope_parameters"]),
    theta_inside=st.booleans(),
)
def test_the_tables_are_those_of_vllm(
    scaling: dict[str, Any] | None,
    theta: float | None,
    share: float | None,
    key: str,
    theta_inside: bool,
) -> None:
    config: dict[str, Any] = {"max_position_embeddings": 512}
    scaling = copy.deepcopy(scaling)
    if theta is not None and theta_inside and scaling:
        scaling["rope_theta"] = theta
    elif theta is not None:
        config["rope_theta"] = theta
    if share is not None:
        config["partial_rotary_factor"] = share
    if scaling:
        config[key] = scaling
    read = LlamaConfig(hidden_size=128, num_attention_heads=2, head_dim=64, **copy.deepcopy(config))
    with set_current_vllm_config(VllmConfig()):
        module = get_rope(
            64,
            max_position=read.max_position_embeddings,
            rope_parameters=read.rope_parameters,
            dtype=torch.float32,
        )
    count = min(512, len(module.cos_sin_cache))
    rope = head_rope(config, 10000.0)
    assert refused_rope(rope) is None
    cos, sin = Rotary(64, rope).tables(torch.arange(count))
    assert torch.equal(torch.cat([cos[0], sin[0]], -1), module.cos_sin_cache[:count])


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "rope_type = longrope"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}}, r"mrope_section = "),
        ({"rope_parameters": {"rope_type": "ntk", "factor": 2.0}}, "rope_type = ntk"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_type = yarn without factor"),
        ({"rope_scaling": {"type": "dynamic", "alpha": 1000.0}}, "alpha = 1000.0"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "without low_freq_factor and"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "full_attention = "),
    ],
)
def test_other_rotations_are_named(config: dict[str, Any], message: str) -> None:
    reason = refused_rope(head_rope(config, 10000.0))
    assert reason is not None and message.strip("\\") in reason
