"""Each speculator becomes its settings in vLLM; nothing else in the engine changes."""

import pytest

from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.serving.speculator import Speculator


def test_a_name_or_a_directory_identifies_the_kind(tmp_path):
    for name, architecture, layers in (
        ("mtp", "DeepseekV3ForCausalLM", 1),
        ("eagle3", "Eagle3DeepseekV2ForCausalLM", 1),
        ("neither", "LlamaForCausalLM", 0),
    ):
        config = {"architectures": [architecture], "num_nextn_predict_layers": layers}
        write_json(tmp_path / name / "config.json", config)
    for name in ("ngram", "none"):
        assert Speculator.named(name) == Speculator(name)
    for kind in ("mtp", "eagle3"):
        assert Speculator.named(str(tmp_path / kind)) == Speculator(kind, tmp_path / kind)
    with pytest.raises(
        OutriderError, match=r"not a speculator .* an EAGLE-3 checkpoint .*, or an MTP directory"
    ):
        Speculator.named(tmp_path / "neither")
    with pytest.raises(OutriderError, match=r"gone/config\.json: no such file"):
        Speculator.named(tmp_path / "gone")
