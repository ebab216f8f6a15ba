"""Streams are named by layer, stored once each in the order of the layers."""

import pytest

from outrider.common.errors import OutriderError
from outrider.speculators.features import (
    FINAL_NORM,
    FeatureSpec,
    FeatureStream,
    layer_index,
    layer_name,
)


def spec(*names: str) -> FeatureSpec:
    return FeatureSpec(tuple(FeatureStream(name, 8) for name in names))


def test_a_layer_and_its_name() -> None:
    assert [layer_index(layer_name(index)) for index in (1, 2, 61)] == [1, 2, 61]
    for name in (FINAL_NORM, "layer_", "layer_-1", "layer_2b", "layer_²", "2"):
        with pytest.raises(OutriderError, match="not a state of the target"):
            layer_index(name)


def test_a_store_has_each_stream_once_by_layer() -> None:
    read = spec("layer_13", FINAL_NORM, "layer_2", "layer_13")
    assert read.names == ("layer_13", FINAL_NORM, "layer_2", "layer_13")
    assert read.stored(8).names == (FINAL_NORM, "layer_2", "layer_13")


def test_one_capture_for_several_kinds_has_what_each_of_them_reads() -> None:
    kinds = [spec(FINAL_NORM), spec("layer_2", "layer_8", "layer_13"), spec("layer_8", "layer_10")]
    stored = FeatureSpec.union(kinds).stored(8)
    assert stored.names == (FINAL_NORM, "layer_2", "layer_8", "layer_10", "layer_13")
    for kind in kinds:
        kind.require(stored, "the store")
    assert FeatureSpec.union([]).stored(8).names == (FINAL_NORM,)
