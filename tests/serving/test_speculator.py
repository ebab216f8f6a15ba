"""Each speculator becomes its settings in vLLM; nothing else in the engine changes."""

import json

import pytest

from outrider.common.errors import OutriderError
from outrider.serving.speculator import Speculator


def test_a_name_or_a_directory_identifies_the_kind(tmp_path):
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
    for name in ("ngram", "none"):
        assert Speculator.named(name) == Speculator(name)
    for kind in ("mtp", "eagle3"):
        assert Speculator.named(str(tmp_path / kind)) == Speculator(kind, tmp_path / kind)
    with pytest.raises(
        OutriderError,
        match=r"not a known speculator.* an EAGLE-3 checkpoint .*, or an MTP directory",
    ):
        Speculator.named(tmp_path / "neither")
    with pytest.raises(OutriderError, match=r"gone/config\.json: no such file"):
        Speculator.named(tmp_path / "gone")
