"""What cannot be captured is refused before an engine starts; on_policy/test_check.py captures."""

import pytest
from datasets import Dataset

from outrider.common.errors import OutriderError
from outrider.data.config import CaptureConfig
from outrider.data.features.capture import capture
from outrider.data.features.capture_plan import drop_overlong_rows
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.speculators.features import FeatureSpec, FeatureStream
from tests.data.split.test_split import table


def test_a_sequence_at_the_limit_fits_and_a_prompt_at_the_limit_is_dropped():
    """The engine prefills 99 tokens of max_model_len 100: it also samples one."""
    ids = [[7] * length for length in (99, 100, 109, 120)]
    starts = [5, 98, 98, 99]
    table, counts = drop_overlong_rows(
        Dataset.from_dict({"token_ids": ids, "completion_start": starts}), 100
    )
    assert len(table) == 3
    assert (counts.cut, counts.cut_tokens, counts.dropped) == (2, 11, 1)


@pytest.mark.parametrize(
    ("update", "stream", "width", "message"),
    [
        ({}, "layer_17", 192, r"reads layer_17 \(192 values\) .* has layer_1 to layer_16 \(192"),
        ({}, "layer_0", 192, "reads layer_0"),
        ({}, "layer_8", 64, r"reads layer_8 \(64 values\)"),
        ({}, "middle", 192, "stream 'middle': not a state of the target"),
        ({"max_model_len": 16}, "layer_8", 192, "none of 2 sequences is left"),
    ],
)
def test_what_cannot_be_captured_is_refused_before_an_engine_starts(
    nano_r1, tmp_path, update, stream, width, message
):
    sequences = table(tmp_path, [("s", 1.0, "x"), ("t", 2.0, "y")], tokens=20)
    parts = {"train": ["0-0"], "validation": [], "heldout": ["0-1"]}
    target = TargetConfig(model=str(nano_r1))
    engine = EngineConfig(**update)
    features = FeatureSpec((FeatureStream(stream, width),))
    with pytest.raises(OutriderError, match=message):
        capture(
            target=target,
            sequences_dir=sequences,
            parts=parts,
            capture=CaptureConfig(),
            engine=engine,
            out_dir=tmp_path / "out",
            features=features,
        )
