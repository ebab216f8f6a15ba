"""The draft model for SGLang: a model of one layer with the layer's bytes."""

from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from outrider.common.files import read_json
from outrider.speculators.kinds.mtp.kind import MTP
from tests.fp8_target import write_fp8_copy
from tests.tiny import LAYERS, tiny_glm, write_tiny_target


@pytest.fixture(scope="module", params=["bf16", "fp8", "glm"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The plain directory and the draft model's."""
    folder = tmp_path_factory.mktemp("nextn")
    glm = tiny_glm() if request.param == "glm" else None
    target = write_tiny_target(folder / "target", config=glm)
    if request.param == "fp8":
        target = write_fp8_copy(target, folder / "fp8")
    MTP().write_other_formats(target, target, "tiny", 3, folder / "twins")
    return target, folder / "twins" / "sglang_nextn"


def test_it_is_a_model_of_one_layer_with_the_layer_s_bytes(written: Any) -> None:
    plain, nextn = written
    config, of_target = (read_json(path / "config.json") for path in (nextn, plain))
    architecture = config.pop("architectures")[0]
    assert architecture in ("DeepseekV3ForCausalLMNextN", "Glm4MoeForCausalLMNextN")
    assert (config.pop("num_hidden_layers"), of_target.pop("num_hidden_layers")) == (1, LAYERS)
    assert architecture == of_target.pop("architectures")[0] + "NextN"
    assert config == of_target
    found, layer = load_file(nextn / "model.safetensors"), f"model.layers.{LAYERS}."
    expected = {
        "model.layers.0." + name.removeprefix(layer): tensor
        for name, tensor in load_file(plain / "model.safetensors").items()
        if name.startswith(layer)
    }
    # SGLang takes both from the target.
    for shared in ("embed_tokens.weight", "shared_head.head.weight"):
        del expected["model.layers.0." + shared]
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.dtype == expected[name].dtype
        assert torch.equal(tensor.view(torch.uint8), expected[name].view(torch.uint8)), name
