"""The loop with real captures, a real training round and a real gate, on a few exchanges."""

import gzip
import io
import itertools

import pytest
from rich.console import Console

from outrider.adapt import loop
from outrider.adapt.loop import BASE, Adapter, ServedRelease, open_adapter
from outrider.common.files import read_json
from outrider.data.features.feature_store import FeatureStore
from outrider.data.sequences import load_sequences
from outrider.eval.replay.replay import replay
from outrider.eval.replay.sums import compare_replays
from outrider.live.endpoint_file import Endpoint
from outrider.live.state import PROMOTED
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.recipe.shipped import EMBEDDED_TRAFFIC

WINDOW = 40


@pytest.mark.engine
@pytest.mark.slow
def test_new_traffic_becomes_a_release_that_the_gate_measured(tmp_path, nano_r1, monkeypatch):
    log = tmp_path / "log.jsonl"
    with gzip.open(EMBEDDED_TRAFFIC / "resume_screening.jsonl.gz", "rb") as shipped:
        log.write_bytes(b"".join(itertools.islice(shipped, 2 * WINDOW)))
    loaded = load_recipe(
        "resume_screening",
        [
            f"traffic.path={log}",
            f"target.model={nano_r1}",
            f"adapt.window={WINDOW}",
            f"adapt.fresh={WINDOW}",
            "adapt.from_start=true",
            "training.processes=1",
        ],
    )
    replicas = [{"name": "a", "data": "unix:/a", "admin": "unix:/b"}]
    state_dir = tmp_path / "state"
    endpoint = Endpoint(name="small", state_dir=state_dir, replicas=replicas)
    # The base serves, and a bundle would serve at once.
    monkeypatch.setattr(loop, "release_in_use", lambda endpoint: ServedRelease(BASE, nano_r1, 5))
    monkeypatch.setattr(Adapter, "_outcome", lambda adapter, bundle: PROMOTED)
    with open_adapter(loaded, endpoint, Console(file=io.StringIO())) as adapter:
        adapter.run(rounds=1)
        state = adapter.journal.read()
        (done,) = state.rounds
        assert done.won
        run = adapter.round_run(1)
        gate = adapter.window_run(2)
        verdict = read_json(run.root / "gate.json")
        # The same figures from the bundle, by hand.
        rows = load_sequences(gate.sequences).to_list()
        first = {row["session"] for row in load_sequences(adapter.window_run(1).sequences)}
        unseen = [row for row in rows if row["session"] not in first]
        assert verdict["ratio"]["low"] > 1 and WINDOW / 3 < verdict["sequences"] <= len(unseen)
        store = FeatureStore.open(gate.features)
        sums = [
            replay(
                speculator=drafter, target_dir=nano_r1, feature_store=store, rows=unseen, depth=5
            )
            for drafter in (nano_r1, run.bundle)
        ]
        assert compare_replays(*sums, 5)["ratio"].value == pytest.approx(
            verdict["ratio"]["value"], rel=0.02
        )
        evidence = read_json(run.bundle / "bundle.json")["evidence"]
        assert evidence["acceptance_length"]["custom"] == verdict["custom"]["value"]
