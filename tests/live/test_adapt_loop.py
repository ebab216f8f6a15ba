"""The loop with real captures, a real training round and a real gate, on a few exchanges."""

import gzip
import io
import itertools

import pytest
from rich.console import Console

from outrider.common.files import read_json
from outrider.data.features.feature_store import FeatureStore
from outrider.data.sequences import load_sequences
from outrider.eval.replay.replay import compare, replay
from outrider.live.adapt import Adapter
from outrider.live.deployer import BASE, Serving
from outrider.live.state import PROMOTED
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.recipe.shipped import EMBEDDED_TRAFFIC

WINDOW = 40


class AtOnce:
    """An endpoint where a bundle serves at once."""

    def __init__(self, target):
        self.now = Serving(BASE, target, 5)

    def serving(self):
        return self.now

    def deploy(self, bundle):
        self.now = Serving("first", bundle, 5)
        return PROMOTED


@pytest.mark.engine
@pytest.mark.slow
def test_new_traffic_becomes_a_release_that_the_gate_measured(tmp_path, nano_r1):
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
            "training.wandb_project=null",
        ],
    )
    endpoint, console = AtOnce(nano_r1), Console(file=io.StringIO())
    with Adapter.open(loaded, tmp_path, endpoint, console, parity=False) as adapter:
        adapter.run(rounds=1)
        state = adapter.state
        (done,) = state.rounds
        assert done.won and endpoint.now.name == "first"
        run, gate = adapter.round_run(1), adapter.window_run(2)
        verdict = read_json(run.root / "gate.json")
        # The same figures from the bundle, by hand.
        rows = load_sequences(gate.sequences).to_list()
        first = {row["session"] for row in load_sequences(adapter.window_run(1).sequences)}
        kept = [row for row in rows if row["session"] not in first]
        assert (
            len(kept) - verdict["left_out"].get("near_identical_to_a_training_prompt", 0)
            == (verdict["sequences"])
        )
        assert verdict["ratio"]["low"] > 1 and verdict["sequences"] > WINDOW / 3
        store = FeatureStore.open(gate.features)
        sums = [replay(each, nano_r1, store, kept, 5) for each in (nano_r1, run.bundle)]
        assert compare(*sums, 5)["ratio"].value == pytest.approx(
            verdict["ratio"]["value"], rel=0.02
        )
        evidence = read_json(run.bundle / "bundle.json")["evidence"]
        assert evidence["acceptance_length"]["custom"] == verdict["custom"]["value"]
