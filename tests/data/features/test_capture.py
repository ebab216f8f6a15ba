"""Capture with a real engine, from log to feature store."""

import json

import pytest

from outrider.common.errors import OutriderError
from outrider.data.config import CaptureConfig
from outrider.data.features.capture import capture, capture_table
from outrider.data.features.feature_store import FeatureStore
from outrider.data.features.lengths import fit, lengths_of
from outrider.data.on_policy.check import check_traffic, load_parts
from outrider.data.sequences import load_sequences
from outrider.data.split.slices import write_slices
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import Engine, open_engine
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.features import FeatureSpec, FeatureStream
from tests.data.split_screenings import split_screenings

ENGINE = EngineConfig(max_num_batched_tokens=512)  # prompts are prefilled in chunks and together
SMALL_SHARDS = CaptureConfig(shard_megabytes=0.5, batch_tokens=2000)
LAYERS = FeatureSpec(tuple(FeatureStream(f"layer_{index}", 192) for index in (13, 2, 8)))
"""What an EAGLE-3 head reads of nano R1."""


@pytest.fixture(scope="module")
def traffic(nano_r1, tmp_path_factory):
    return split_screenings(nano_r1, tmp_path_factory.mktemp("traffic"), 12)


@pytest.fixture(scope="module")
def engine(nano_r1):
    with open_engine(TargetConfig(model=str(nano_r1)), ENGINE) as engine:
        yield engine


@pytest.fixture(scope="module")
def rows(traffic):
    table = load_sequences(traffic / "sequences")
    return [(row["sequence_id"], row["token_ids"], row["completion_start"]) for row in table]


@pytest.mark.engine
def test_every_sequence_is_captured_and_the_states_check_out(
    engine, nano_r1, traffic, rows, tmp_path
):
    table = load_sequences(traffic / "sequences")
    head = load_target_ends(nano_r1).lm_head_VH
    summary = capture_table(
        engine, table, head, {"target": "nano"}, SMALL_SHARDS, tmp_path, features=LAYERS
    )
    store = FeatureStore.open(tmp_path)
    assert store.spec.names == ("final_norm", "layer_2", "layer_8", "layer_13")
    for name, found in summary["layer_check"]["streams"].items():
        assert found["nearest"] > 0.99 and found["error"] < found["neighbour_error"] / 4, name
    store.verify()
    assert store.sequence_ids == [row_id for row_id, _, _ in rows]
    assert summary["sequences"] == len(rows) and summary["shards"] > 1
    for row_id, token_ids, completion_start in rows:
        features = store.read(row_id)
        assert (features.token_ids.tolist(), features.completion_start) == (
            token_ids,
            completion_start,
        )
        assert features.hidden.isfinite().all()
        assert LAYERS.inputs(features).shape == (len(token_ids), 3 * 192)
        assert LAYERS.inputs(features).isfinite().all()
    assert summary["self_check"]["p99_difference"] < 0.1
    others = {path.name for path in tmp_path.iterdir() if not path.name.startswith("shard-")}
    assert others == {"manifest.json", "summary.json"}


def test_what_does_not_fit_is_said_before_an_engine_starts(nano_r1, traffic, tmp_path):
    parts = json.loads((traffic / "parts.json").read_text())
    short = EngineConfig(max_model_len=64)
    strict = SMALL_SHARDS.model_copy(update={"too_long": "fail"})
    target = TargetConfig(model=str(nano_r1))
    with pytest.raises(
        OutriderError, match=r"serving.engine.max_model_len = 64: \d+ of \d+ sequences do not fit"
    ):
        capture(target, traffic / "sequences", parts, strict, short, tmp_path)
    with pytest.raises(OutriderError, match=r"none of \d+ sequences is left"):
        capture(target, traffic / "sequences", parts, SMALL_SHARDS, short, tmp_path)


@pytest.mark.engine
def test_long_sequences_are_cut_or_left_out_and_no_stage_sees_those(
    engine, nano_r1, traffic, tmp_path
):
    """The engine's limit lies between the lengths, and below one prompt."""
    table = load_sequences(traffic / "sequences").select(range(8))
    one_check = SMALL_SHARDS.model_copy(update={"self_check_sequences": 1})
    starts, ids = table["completion_start"][:], table["token_ids"][:]
    median = sorted(map(len, ids))[len(ids) // 2]
    for choice, limit, kept in (
        ("cut", max(starts), [start < max(starts) for start in starts]),
        ("drop", median, [len(token_ids) <= median for token_ids in ids]),
    ):
        short = Engine(engine.llm, limit + 1, tmp_path)
        fitting, lengths = fit(table, limit + 1, choice)
        features = tmp_path / choice
        features.mkdir()
        head = load_target_ends(nano_r1).lm_head_VH
        summary = capture_table(short, fitting, head, {}, one_check, features, lengths)
        assert 0 < summary["too_long"]["dropped"] == kept.count(False) < len(ids)
        assert (summary["too_long"]["cut"] > 0) == (choice == "cut")
        store = FeatureStore.open(features)
        expected = {
            row["sequence_id"]: row["token_ids"][:limit]
            for row, keeps in zip(table, kept, strict=True)
            if keeps
        }
        found = {name: store.read(name).token_ids.tolist() for name in store.sequence_ids}
        assert found == expected
        (features / "parts.json").write_text(json.dumps({"train": table["sequence_id"][:]}))
        write_slices({}, features)
        check_traffic(traffic / "sequences", features, features, None)
        (key, *_) = summary["too_long"]["key"].split()
        assert key == "serving.engine.max_model_len"
        assert load_parts(features, features) == {"train": list(expected)}


@pytest.mark.parametrize(
    ("choice", "kept", "counts"),
    [("cut", [0, 1, 2], (2, 11, 1)), ("drop", [0], (0, 0, 3)), ("fail", [0], (0, 0, 3))],
)
def test_a_sequence_at_the_limit_fits_and_a_prompt_at_the_limit_is_dropped(choice, kept, counts):
    """The engine prefills 99 tokens of max_model_len 100: it also samples one."""
    found, rows = lengths_of([99, 100, 109, 120], [5, 98, 98, 99], 100, choice)
    assert rows == kept
    assert (found.cut, found.cut_tokens, found.dropped) == counts


@pytest.mark.parametrize(
    ("update", "stream", "width", "message"),
    [
        ({}, "layer_17", 192, r"reads layer_17 \(192 values\) .* has layer_1 to layer_16 \(192"),
        ({}, "layer_0", 192, "reads layer_0"),
        ({}, "layer_8", 64, r"reads layer_8 \(64 values\)"),
        ({}, "middle", 192, "stream 'middle': not a state of the target"),
        ({"pipeline_parallel": 2}, "layer_8", 192, "pipeline_parallel = 2: the speculator reads"),
    ],
)
def test_streams_that_cannot_be_captured_are_refused_before_an_engine_starts(
    nano_r1, traffic, tmp_path, update, stream, width, message
):
    parts = json.loads((traffic / "parts.json").read_text())
    target, engine = TargetConfig(model=str(nano_r1)), ENGINE.model_copy(update=update)
    features = FeatureSpec((FeatureStream(stream, width),))
    with pytest.raises(OutriderError, match=message):
        capture(target, traffic / "sequences", parts, SMALL_SHARDS, engine, tmp_path, features)
