"""Counts from config.json against the modules on the meta device, R1's included."""

import json
import subprocess
import sys

import pytest
import torch

from outrider.common.errors import OutriderError
from outrider.speculators.kinds.mtp.layer import MTPSpeculator
from outrider.speculators.kinds.mtp.size import mtp_size
from outrider.speculators.layers.deepseek_layer import DeepseekArch
from tests.r1_config import R1
from tests.tiny import tiny_config

PARTS = {
    "attention": ("self_attn.",),
    "routed_experts": ("mlp.experts.",),
    "shared_experts": ("mlp.shared_experts.", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    "router": ("mlp.gate.weight",),
    "eh_proj": ("eh_proj",),
    "norms": ("enorm", "hnorm", "block.input_layernorm", "block.post_attention_layernorm"),
}


def part_of(parameter: str) -> str:
    """The final norm's name ends as the attention's inner ones do."""
    found = [part for part, told in PARTS.items() if any(word in parameter for word in told)]
    return "norms" if parameter == "norm.weight" else found[0]


def module_of(config: dict) -> MTPSpeculator:
    with torch.device("meta"):
        return MTPSpeculator(DeepseekArch.from_config(config))


def tiny() -> dict:
    return tiny_config().to_dict() | {"num_nextn_predict_layers": 1}


@pytest.mark.parametrize("name", ["tiny", "tiny_without_q_rank", "tiny_dense", "nano_r1", "r1"])
def test_every_part_is_what_the_module_has(name, nano_r1):
    config = {
        "tiny": tiny,
        "tiny_without_q_rank": lambda: tiny() | {"q_lora_rank": None},
        "tiny_dense": lambda: tiny() | {"first_k_dense_replace": 3},
        "nano_r1": lambda: json.loads((nano_r1 / "config.json").read_text()),
        "r1": lambda: R1,
    }[name]()
    size, module = mtp_size(config), module_of(config)
    counted = dict.fromkeys(size.parts, 0)
    for parameter_name, parameter in module.named_parameters():
        counted[part_of(parameter_name)] += parameter.numel()
    assert size.parts == counted
    assert size.total == sum(parameter.numel() for parameter in module.parameters())
    assert size.largest == max(parameter.numel() for parameter in module.parameters())
    assert size.largest_trained("all") == size.largest
    assert size.largest_trained("lora") == max(
        p.numel() for n, p in module.named_parameters() if ".experts." not in n
    )
    routed = [p.numel() for n, p in module.named_parameters() if ".experts." in n]
    assert size.trained("non_routed") == size.total - sum(routed)


def test_r1s_layer_is_what_is_published_of_it():
    size = mtp_size(R1)
    assert size.total == pytest.approx(11.6e9, rel=0.005)
    assert size.routed_experts == pytest.approx(11.3e9, rel=0.005)
    assert size.trained("non_routed") == pytest.approx(336e6, rel=0.005)
    assert size.frozen("all") == 0 and size.frozen("lora") == size.routed_experts


def test_adapters_count_by_their_shapes():
    size = mtp_size(tiny())
    rank, shapes = 5, [(5, 64), (2 * 32, 5), (5, 32), (64, 5)]
    adapters = 4 * sum(rows * columns for rows, columns in shapes)
    assert size.trained("lora", lora_rank=rank) - size.trained("non_routed") == adapters


def test_a_config_of_another_architecture_is_told_by_its_name():
    with pytest.raises(OutriderError, match=r"other/config\.json: no kv_lora_rank"):
        mtp_size(
            {key: value for key, value in R1.items() if key != "kv_lora_rank"}, "other/config.json"
        )


def test_no_torch_is_imported():
    script = (
        "import sys, outrider.speculators.kinds, outrider.training.sizing.memory;"
        " outrider.speculators.kinds.trainable_kind('mtp').size;"
        " print('torch' in sys.modules)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert finished.stdout == "False\n"
