"""Feature stores: written, interrupted, damaged, joined, in both types of storage."""

import json
import pickle
from dataclasses import replace

import pytest
import torch

from outrider.common.errors import OutriderError
from outrider.data.config import CaptureConfig
from outrider.data.features.capture import capture_ids
from outrider.data.features.feature_store import (
    JOURNAL,
    FeatureStore,
    decode_states,
    encode_states,
    join_stores,
)
from outrider.data.features.feature_writer import FeatureWriter
from outrider.speculators.features import FINAL_NORM, FeatureSpec, FeatureStream, SequenceStates
from tests.data.features.stand_in_capture import WIDTH, StandIn

HIDDEN = 8
SOURCE = {"target": "t", "sequences": "s"}


FINAL = FeatureSpec(()).stored(HIDDEN)


def sequence(index):
    generator = torch.Generator().manual_seed(index)
    length = 3 + index % 5
    return SequenceStates(
        token_ids=torch.randint(0, 4096, (length,), generator=generator, dtype=torch.int32),
        completion_start=index % 3,
        streams={FINAL_NORM: torch.randn(length, HIDDEN, generator=generator).to(torch.bfloat16)},
    )


def fill(directory, indices, source=SOURCE, name="0"):
    with FeatureWriter(directory, FINAL, source, shard_megabytes=300 / 2**20) as writer:
        for index in indices:
            if f"{name}-{index}" not in writer.done:
                writer.write(f"{name}-{index}", sequence(index))


def assert_whole(store, names):
    for name in reversed(names):
        assert_same_states(store.read(name), sequence(int(name[2:])))


def assert_same_states(states, expected):
    assert states.completion_start == expected.completion_start
    assert states.streams.keys() == expected.streams.keys()
    pairs = [(states.token_ids, expected.token_ids)]
    pairs += [(states.streams[name], expected.streams[name]) for name in expected.streams]
    for tensor, expected_tensor in pairs:
        assert torch.equal(tensor, expected_tensor) and tensor.dtype == expected_tensor.dtype


def test_pickled_states_are_the_same_without_a_copy_in_the_pickle():
    """Ray puts the buffers of protocol 5 into its object store as they are."""
    written = replace(sequence(4), scores=[[1.0], [2.0]])
    buffers = []
    content = pickle.dumps(written, protocol=5, buffer_callback=buffers.append)
    assert sum(len(buffer.raw()) for buffer in buffers) == written.hidden.nbytes + 4 * 7
    read = pickle.loads(content, buffers=buffers)
    assert read.scores == written.scores
    assert_same_states(read, written)
    assert read.hidden.data_ptr() != written.hidden.data_ptr()


def test_a_flipped_byte_is_found_in_the_shards_of_the_named_sequences(tmp_path):
    fill(tmp_path / "features", range(10))
    store = FeatureStore.open(tmp_path / "features")
    last = store.manifest.shards[-1]
    path = store.directory / last.file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert FeatureStore.open(tmp_path / "features").manifest == store.manifest, "the same size"
    store.verify(["0-0", "of another store"])
    with pytest.raises(OutriderError) as caught:
        store.verify(store.sequence_ids)
    message = str(caught.value)
    assert message.startswith(f"{path}: its SHA-256 is ")
    assert last.sha256 in message
    assert message.endswith(f"delete {store.directory} and rerun the command to repeat capture")


def test_an_interrupted_writing_goes_on_after_the_last_whole_shard(tmp_path):
    with (
        pytest.raises(KeyboardInterrupt),
        FeatureWriter(tmp_path / "features", FINAL, SOURCE, shard_megabytes=300 / 2**20) as writer,
    ):
        for index in range(10):
            writer.write(f"0-{index}", sequence(index))
        assert len(writer.shards) >= 2
        raise KeyboardInterrupt
    with pytest.raises(OutriderError, match="or an unfinished one"):
        FeatureStore.open(tmp_path / "features")
    with (tmp_path / "features" / JOURNAL).open("a") as journal:
        journal.write('{"file": "shard-000')  # the machine died here
    before = (tmp_path / "features" / "shard-00000.safetensors").stat().st_mtime_ns
    with (tmp_path / "features" / "shard-00001.safetensors").open("r+b") as damaged:
        damaged.seek(-3, 2)
        damaged.write(b"\0\1\2")
    fill(tmp_path / "features", range(20))
    for path in (tmp_path / "features", *(tmp_path / "features").iterdir()):
        assert path.stat().st_mode & 0o077 == 0
    assert (tmp_path / "features" / "shard-00000.safetensors").stat().st_mtime_ns == before
    store = FeatureStore.open(tmp_path / "features")
    assert store.sequence_ids == [f"0-{index}" for index in range(20)]
    assert_whole(store, store.sequence_ids)


def test_damage_and_versions_are_told_apart(tmp_path):
    fill(tmp_path / "features", range(5))
    shard = tmp_path / "features" / "shard-00000.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[:-1])
    with pytest.raises(OutriderError, match="the manifest lists"):
        FeatureStore.open(tmp_path / "features")
    manifest = tmp_path / "features" / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "version": 99}))
    with pytest.raises(OutriderError, match="version 99, but this program reads 4"):
        FeatureStore.open(tmp_path / "features")
    with pytest.raises(OutriderError, match="no feature store"):
        FeatureStore.open(tmp_path / "elsewhere")


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_streams_are_kept_by_name(tmp_path, dtype):
    """A drafter that reads auxiliary layers gets them in the order of its own spec."""
    streams = (FeatureStream("layer_2", 4), FeatureStream("layer_5", HIDDEN))
    spec = FeatureSpec(streams).stored(HIDDEN)
    with FeatureWriter(tmp_path, spec, SOURCE, dtype=dtype) as writer:
        for index in range(3):
            states = sequence(index)
            auxiliary = {"layer_2": states.hidden[:, :4] * 2, "layer_5": states.hidden + 1}
            writer.write(f"0-{index}", replace(states, streams={**states.streams, **auxiliary}))
    store = FeatureStore.open(tmp_path)
    assert store.spec == FeatureSpec((FeatureStream(FINAL_NORM, HIDDEN), *streams))
    hidden = sequence(2).hidden.float()
    features = store.read("0-2")
    read_by_drafter = FeatureSpec((streams[1], FeatureStream(FINAL_NORM, HIDDEN), streams[0]))
    expected = torch.cat([hidden + 1, hidden, hidden[:, :4] * 2], dim=-1)
    error = (read_by_drafter.inputs(features).float() - expected).abs().max()
    assert error < (0.05 if dtype == "bf16" else 0.3)
    with pytest.raises(OutriderError, match=r"reads layer_9 \(8 values\); run the capture stage"):
        FeatureSpec((FeatureStream("layer_9", HIDDEN),)).require(store.spec, tmp_path)


def test_the_wanted_sequences_of_each_store_are_read_back_from_links(tmp_path):
    fill(tmp_path / "a", range(20), {"of": "a"}, "a")
    fill(tmp_path / "b", range(20, 30), {"of": "b"}, "b")
    ids = ["b-29", "a-0", "a-17", "b-20"]
    join_stores([tmp_path / "a", tmp_path / "b"], ids, tmp_path / "joined")
    store = FeatureStore.open(tmp_path / "joined")
    assert sorted(store.sequence_ids) == sorted(ids)
    assert_whole(store, ids)
    shards = list((tmp_path / "joined").glob("shard-*"))
    assert len(shards) < len(list(tmp_path.glob("[ab]/shard-*")))  # only those that are needed
    assert all(path.stat().st_nlink == 2 for path in shards)
    assert (tmp_path / "joined").stat().st_mode & 0o077 == 0


def states(tokens: int, hidden: int, seed: int = 0) -> torch.Tensor:
    """States like a target's: entries of about 1, a few channels 30 times larger, uneven tokens."""
    torch.manual_seed(seed)
    h_TH = torch.randn(tokens, hidden) * torch.logspace(-3, 3, tokens)[:, None]
    h_TH[:, :3] *= 30
    return h_TH.bfloat16()


def test_each_value_is_off_by_at_most_half_a_step_of_e4m3():
    """Half a step of a 3-bit mantissa is 1/16 of the value; below 2^-6 (scaled to 448) it is 2^-9.

    bf16 adds 2^-9 of the value.
    """
    h_TH = states(64, 256)
    back_TH = decode_states(encode_states(h_TH, "fp8"))
    assert back_TH.dtype == torch.bfloat16
    largest_T1 = h_TH.float().abs().amax(-1, keepdim=True)
    bound_TH = (h_TH.float().abs() / 16).maximum(
        largest_T1 / 448 * 2**-10
    ) + back_TH.float().abs() * 2**-8
    error_TH = (back_TH.float() - h_TH.float()).abs()
    assert (error_TH <= bound_TH).all()
    assert (error_TH > h_TH.float().abs() / 40).any(), "the bound would hold of anything"
    assert torch.equal(back_TH.abs().amax(-1), h_TH.abs().amax(-1)), (
        "each token's largest value is exact"
    )


def test_zeros_stay_zeros_and_what_is_not_finite_stays_so():
    h_TH = states(4, 32)
    h_TH[1] = 0
    h_TH[2, 5] = float("nan")
    h_TH[3, 6] = float("inf")
    back_TH = decode_states(encode_states(h_TH, "fp8"))
    assert torch.equal(back_TH[1], torch.zeros(32).bfloat16())
    assert not back_TH[2].isfinite().all() and not back_TH[3].isfinite().all()


def test_states_of_the_other_type_are_captured_anew(tmp_path):
    """The same sequences, another `capture.dtype`: nothing of the old store is taken for it."""

    asked = tmp_path / "asked"
    rows = [("a", [1, 2, 3, 4], 2)]
    engine = StandIn(asked)
    for dtype, prefills in (("bf16", 1), ("bf16", 1), ("fp8", 2), ("fp8", 2)):
        store = capture_ids(engine, rows, tmp_path / "features", CaptureConfig(dtype=dtype))
        assert asked.read_text().count("a") == prefills
        assert store.manifest.header.dtype == {"bf16": "bfloat16", "fp8": "float8_e4m3fn"}[dtype]
    more = FeatureSpec((FeatureStream("layer_2", WIDTH),))
    for features, prefills in ((more, 3), (more, 3), (FeatureSpec(()), 3)):
        store = capture_ids(
            engine=engine,
            rows=rows,
            out_dir=tmp_path / "features",
            capture=CaptureConfig(dtype="fp8"),
            features=features,
        )
        assert (
            asked.read_text().count("a") == prefills
        )  # a store with more streams serves a drafter of fewer
        assert store.spec.names == ("final_norm", "layer_2")
    expected_TH = torch.tensor([[1.0], [2], [3], [4]]).expand(4, WIDTH)
    torch.testing.assert_close(store.read("a").hidden.float(), expected_TH, rtol=0.07, atol=0)


def test_progress_is_logged_without_a_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("outrider.data.features.capture.LINE_EVERY_S", 0.0)
    rows = [("a", [1, 2, 3, 4], 2), ("b", [5, 6, 7], 1)]
    capture_ids(StandIn(tmp_path / "asked"), rows, tmp_path / "features", CaptureConfig())
    line = capsys.readouterr().err.strip()
    assert line.startswith("captured 7 of 7 tokens, ") and line.endswith(" about 0 min left")
