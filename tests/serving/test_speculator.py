"""Each speculator becomes its settings in vLLM; nothing else in the engine changes."""

import json

import pytest

from outrider.common.errors import OutriderError
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.speculator import Drafting, Speculator
from outrider.serving.vllm_arguments import engine_arguments


@pytest.fixture
def directories(tmp_path):
    """A directory of each kind, with config.json only."""
    for name, config in (
        ("mtp", {"architectures": ["DeepseekV3ForCausalLM"], "num_nextn_predict_layers": 1}),
        (
            "eagle3",
            {"architectures": ["Eagle3DeepseekV2ForCausalLM"], "num_nextn_predict_layers": 1},
        ),
        ("neither", {"architectures": ["LlamaForCausalLM"]}),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_name_or_a_directory_identifies_the_kind(directories):
    assert Speculator.named("ngram") == Speculator("ngram") and Speculator.named(
        "none"
    ) == Speculator("none")
    for kind in ("mtp", "eagle3"):
        assert Speculator.named(str(directories / kind)) == Speculator(kind, directories / kind)
    with pytest.raises(
        OutriderError, match=r"not a speculator .* an EAGLE-3 checkpoint .*, or an MTP directory"
    ):
        Speculator.named(directories / "neither")
    with pytest.raises(OutriderError, match=r"gone/config\.json: no such file"):
        Speculator.named(directories / "gone")


def test_each_kind_is_another_speculative_config_and_nothing_else(directories):
    target = TargetConfig(model=str(directories / "mtp"))

    def arguments(speculator):
        drafting = Drafting(speculator, 3, "probabilistic", [(1, 8, 3)])
        return engine_arguments(target, EngineConfig(), drafting)

    plain = engine_arguments(target, EngineConfig())
    assert "speculative_config" not in plain and arguments(Speculator("none")) == plain
    head = arguments(Speculator("eagle3", directories / "eagle3"))
    assert head.pop("speculative_config") == {
        "method": "eagle3",
        "model": str(directories / "eagle3"),
        "num_speculative_tokens": 3,
        "draft_sample_method": "probabilistic",
        "num_speculative_tokens_per_batch_size": [[1, 8, 3]],
    }
    lookup = arguments(Speculator("ngram"))
    assert lookup.pop("speculative_config") == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
        "num_speculative_tokens_per_batch_size": [[1, 8, 3]],
    }
    assert head == lookup == plain
