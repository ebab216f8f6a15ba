"""The layer against transformers' in float32, with the attention of each architecture.

Dense and sparse, few and many experts, plain and YaRN positions; grouped queries with and without
norms and biases, heads rotated wholly or in part.
"""

import pytest
import torch
from transformers import DeepseekV3Config, Glm4MoeConfig
from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
    DeepseekV3DecoderLayer,
    DeepseekV3RotaryEmbedding,
)
from transformers.models.glm4_moe.modeling_glm4_moe import (
    Glm4MoeDecoderLayer,
    Glm4MoeRotaryEmbedding,
)

from outrider.speculators.layers.decoder_layer import DecoderLayer, grouped_linear

HIDDEN = 48
SHAPE = {
    "vocab_size": 64,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "intermediate_size": 40,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 20,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 4,
    "topk_group": 2,
    "routed_scaling_factor": 2.5,
    "norm_topk_prob": True,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
}
DEEPSEEK = SHAPE | {
    "architectures": ["DeepseekV3ForCausalLM"],
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
}
GLM = SHAPE | {
    "architectures": ["Glm4MoeForCausalLM"],
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "attention_bias": True,
    "use_qk_norm": True,
    "n_group": 1,
    "topk_group": 1,
}
YARN = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
NEW_ROPE = {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
REFERENCES = {
    "DeepSeek": (DEEPSEEK, DeepseekV3Config, DeepseekV3DecoderLayer, DeepseekV3RotaryEmbedding),
    "GLM": (GLM, Glm4MoeConfig, Glm4MoeDecoderLayer, Glm4MoeRotaryEmbedding),
}
CASES = {
    "DeepSeek, dense": ({}, 0),
    "DeepSeek, few experts": ({}, 1),
    "DeepSeek, many experts": ({"n_routed_experts": 16}, 1),
    "DeepSeek, one group": ({"n_group": 1, "topk_group": 1}, 1),
    "DeepSeek, no query rank": ({"q_lora_rank": None}, 1),
    "DeepSeek, yarn as R1": ({"rope_scaling": YARN}, 1),
    "DeepSeek, yarn with uneven mscale": (
        {"rope_scaling": YARN | {"mscale": 0.7, "mscale_all_dim": 0.4}},
        1,
    ),
    "GLM, dense": ({}, 0),
    "GLM, as GLM-4.5": ({}, 1),
    "GLM, as GLM-4.5-Air": ({"use_qk_norm": False, "routed_scaling_factor": 1.0}, 1),
    "GLM, no biases, two groups": ({"attention_bias": False, "n_group": 2, "topk_group": 1}, 1),
    "GLM, other rope, weights not normed": (
        {"rope_parameters": NEW_ROPE, "norm_topk_prob": False},
        1,
    ),
    "GLM, whole heads rotated": ({"partial_rotary_factor": 1.0}, 1),
}


@pytest.mark.parametrize("case", CASES)
def test_outputs_and_gradients_equal_transformers(case):
    changes, layer_index = CASES[case]
    given, config_class, layer_class, rotary_class = REFERENCES[case.split(",")[0]]
    shape = given | changes
    config = config_class(**shape)
    torch.manual_seed(0)
    config._attn_implementation = "eager"
    reference = layer_class(config, layer_index)
    # Wide enough that routing, softmax and norms all do something.
    for name, tensor in reference.state_dict().items():
        tensor.copy_(
            torch.rand_like(tensor) + 0.5 if "norm" in name else torch.randn_like(tensor) * 0.3
        )
    layer = DecoderLayer(shape, layer_index)
    layer.load_state_dict(reference.state_dict())

    tokens = 90
    x = torch.randn(2, tokens, HIDDEN)
    position = torch.arange(tokens).expand(2, -1) + 100
    causal = torch.full((tokens, tokens), float("-inf")).triu(1)[None, None]
    tables = rotary_class(config)(x, position_ids=position)
    expected = reference(
        x, position_embeddings=tables, attention_mask=causal, position_ids=position
    )
    ours = layer(x, position)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)

    probe = torch.randn_like(expected)
    (expected * probe).sum().backward()
    (ours * probe).sum().backward()
    theirs = dict(reference.named_parameters())
    for name, parameter in layer.named_parameters():
        torch.testing.assert_close(
            parameter.grad,
            theirs[name].grad,
            rtol=1e-3,
            atol=1e-3,
            msg=lambda m, n=name: f"{n}: {m}",
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_tokens_go_through_their_experts_and_gradients_too(dtype):
    """Group by group, each through its own matrix; some groups are empty."""
    torch.manual_seed(0)
    counts = [2, 0, 4, 3, 0]
    x_MI = torch.randn(9, 16, dtype=dtype, requires_grad=True)
    stack_XOI = torch.randn(5, 24, 16, dtype=dtype, requires_grad=True)
    out_MO = grouped_linear(x_MI, stack_XOI, torch.tensor(counts).cumsum(0).int())
    groups = zip(x_MI.split(counts), stack_XOI, strict=True)
    expected = torch.cat([x_CI @ weight_OI.T for x_CI, weight_OI in groups])
    torch.testing.assert_close(out_MO, expected)
    probe = torch.randn_like(expected)
    found = torch.autograd.grad(out_MO, (x_MI, stack_XOI), probe)
    wanted = torch.autograd.grad(expected, (x_MI, stack_XOI), probe)
    torch.testing.assert_close(found, wanted)
