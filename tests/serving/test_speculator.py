"""Each speculator becomes its settings in vLLM; nothing else in the engine changes."""

import json

import pytest

from outrider.common.errors import OutriderError
from outrider.serving.speculator import Speculator


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
