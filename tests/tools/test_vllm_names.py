"""Names of vLLM that the source uses."""

from pathlib import Path

from tools.vllm_names import exists, missing, uses

SOURCE = """
from vllm import _custom_ops as ops
from vllm.config.speculative import SpeculativeConfig, NoSuchName
ops.CPUDNNLGEMMHandler
ops.no_such_attribute
SpeculativeConfig.method
import torch
torch.no_such_function
"""


def test_imports_and_attributes_that_are_missing_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "source.py"
    path.write_text(SOURCE)
    names = [use.name for use in uses(path)]
    assert "vllm._custom_ops.CPUDNNLGEMMHandler" in names
    assert not any("torch" in name for name in names)
    assert missing([path]) == {
        "vllm._custom_ops.no_such_attribute": [f"{path}:5"],
        "vllm.config.speculative.NoSuchName": [f"{path}:3"],
    }


def test_a_module_an_attribute_and_a_field_exist() -> None:
    for name in (
        "vllm.config",
        "vllm.v1.sample.rejection_sampler.expand_kernel",
        "vllm.config.speculative.SpeculativeConfig.num_speculative_tokens",
    ):
        assert exists(name)
    assert not exists("vllm.no_such_module.anything")
