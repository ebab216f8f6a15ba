"""The gate of a round: better on newer traffic, and nothing forgotten of older traffic."""

import dataclasses

import numpy as np
import pytest

from outrider.adapt import gate
from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.data.features.feature_store import FeatureStore
from outrider.eval.replay.sums import ReplaySums
from outrider.eval.stats.clusters import INDEPENDENT
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.run_dir import RunDirectory
from tests.data.features.test_feature_store import fill
from tests.data.split.test_split import prompt, table

SEQUENCES = 400


def window(folder, number, sessions=SEQUENCES):
    """A run directory with a sequence of each session, all usable."""
    run = RunDirectory(folder / f"w{number}")
    numbers = range(1000 * number, 1000 * number + sessions)
    run.sequences.parent.mkdir(parents=True)
    table(run.sequences.parent, [(f"s{n}", float(n), prompt(n)) for n in numbers])
    return run


@pytest.mark.parametrize(
    ("on_older", "sessions", "words", "ships", "reason"),
    [
        (1.0, SEQUENCES, [], True, "acceptance length on older traffic, custom / base: 1.00"),
        (0.9, SEQUENCES, [], False, "sessions, but the interval must lie above 0.97"),
        (0.9, SEQUENCES, ["adapt.max_older_loss=0.2"], True, "on older traffic"),
        (1.0, SEQUENCES, ["eval.gate.min_acceptance_ratio=1.2"], False, "must lie above 1.2"),
        (0.9, 3, [], True, "Not checked: older traffic (too little of it to measure forgetting)"),
    ],
)
def test_a_round_that_forgets_older_traffic_does_not_ship(
    *, tmp_path, nano_r1, monkeypatch, on_older, sessions, words, ships, reason
):
    older = window(tmp_path, 1, sessions)
    trained = window(tmp_path, 2)
    newer = window(tmp_path, 3)
    write_json(trained.split / "parts.json", {"train": ["0-1"], "validation": ["0-2"]})
    gain = {newer: 1.1, older: on_older}

    def replayed(run, speculator, recipe, ids):
        random = np.random.default_rng(len(ids))
        steps_R = 20 * np.exp(0.1 * random.standard_normal(len(ids)))
        if speculator == trained.speculator:
            steps_R = steps_R / (gain[run] * np.exp(0.02 * random.standard_normal(len(ids))))
        shapes = {
            field.name: np.zeros((len(ids), 1, 1)) for field in dataclasses.fields(ReplaySums)
        }
        return ReplaySums(
            **shapes
            | {
                "sequence_ids": list(ids),
                "sessions": [f"{run.root.name} {name}" for name in ids],
                "users": [INDEPENDENT] * len(ids),
                "tokens_R": np.full(len(ids), 60.0),
                "steps_RK": steps_R[:, None],
                "regions": (),
            }
        )

    monkeypatch.setattr(gate, "in_child", lambda work, *args, **named: replayed(*args, **named))
    monkeypatch.setattr(
        gate,
        "usable_ids",
        lambda run: [f"0-{n}" for n in range(sessions if run == older else SEQUENCES)],
    )
    recipe = load_recipe("resume_screening", [f"target.model={nano_r1}", *words]).recipe
    verdict = gate.judge_round(
        trained,
        windows=[newer],
        older=[older],
        serving_dir=tmp_path / "serving",
        recipe=recipe,
        k=1,
    )
    assert verdict.ships == ships and reason in verdict.reason
    assert verdict.ships == all(check.outcome == "passed" for check in verdict.checks)
    assert verdict.ratio.value == pytest.approx(1.1, rel=0.01)


def test_a_window_is_not_replayed_on_states_that_have_changed(tmp_path, nano_r1):
    changed = window(tmp_path, 1, sessions=3)
    fill(changed.features, range(3))
    recipe = load_recipe("resume_screening", [f"target.model={nano_r1}"]).recipe
    stored = FeatureStore.open(changed.features)
    path = stored.directory / stored.manifest.shards[0].file
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(OutriderError, match=f"{path}: its SHA-256 is "):
        gate.replay_window(changed, nano_r1, recipe, ids=["0-0"])
