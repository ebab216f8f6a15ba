"""Quarantine: judged from stored scores, left out of every part; most of it stops the run."""

import json

import pytest
import torch
from datasets import Dataset

from outrider.common.errors import OutriderError
from outrider.data.features.feature_store import FeatureStore
from outrider.data.features.feature_writer import FeatureWriter
from outrider.data.on_policy.check import (
    check_on_policy,
    judge_sequences,
    load_parts,
    report_lines,
    require_on_policy,
    write_quarantine,
)
from outrider.data.on_policy.evidence import OnPolicyEvidence
from outrider.serving.token_scores import COLUMNS
from outrider.speculators.features import FINAL_NORM, FeatureSpec, SequenceStates
from tests.data.toy_target import ToyTarget


def store_of(groups: dict[str, OnPolicyEvidence], directory):
    """A feature store and a table with the scores of each group.

    The sequences are named `NAME-0`, `NAME-1`, ...
    """
    rows = []
    spec = FeatureSpec(()).stored(4)
    with FeatureWriter(directory, spec, {"toy": 1}, score_columns=COLUMNS) as writer:
        for name, evidence in groups.items():
            for index, sums_PC in enumerate(evidence.sums_SPC):
                states = SequenceStates(
                    token_ids=torch.tensor([5, 6]),
                    completion_start=1,
                    streams={FINAL_NORM: torch.zeros(2, 4)},
                    scores=sums_PC.tolist(),
                )
                writer.write(f"{name}-{index}", states)
                rows.append(
                    {
                        "sequence_id": f"{name}-{index}",
                        "temperature": evidence.temperature_S[index],
                        "top_p": evidence.top_p_S[index],
                        "top_k": 0,
                        "constraint": "",
                        "grammar": "",
                        "fidelity": "retokenized" if evidence.retokenized_S[index] else "exact",
                    }
                )
    return FeatureStore.open(directory), Dataset.from_list(rows)


def parts_of(table):
    ids = table["sequence_id"][:]
    return {"train": ids[::2], "validation": ids[1::4], "heldout": ids[3::4]}


@pytest.fixture
def toy():
    return ToyTarget()


@pytest.fixture
def on_policy(toy):
    return toy.evidence(toy.drawn())


@pytest.fixture
def foreign(toy):
    """Well below 0.95."""
    other_NV = toy.logits_NV + 6.0 * toy.noise(*toy.logits_NV.shape)
    return toy.evidence(toy.drawn(logits_NV=other_NV))


def slices_of(table):
    ids = table["sequence_id"][:]
    tenants = {name: [one for one in ids if one.startswith(name)] for name in ("own", "foreign")}
    return {"tenant": tenants, "route": {"only": ids}}


def test_the_foreign_slice_is_named_and_set_aside(on_policy, foreign, tmp_path):
    store, table = store_of({"own": on_policy, "foreign": foreign.take(slice(0, 20))}, tmp_path)
    report = judge_sequences(store, table, parts_of(table), slices_of(table), min_on_policy=0.95)
    tenants = report["slices"]["tenant"]
    assert tenants["own"]["verdict"]["own"] is True and tenants["own"]["quarantined"] == 0
    assert (
        tenants["foreign"]["verdict"]["cause"] == "foreign"
        and tenants["foreign"]["quarantined"] == 20
    )
    assert report["all"]["verdict"]["text"].startswith("only in tenant foreign: ")
    assert sum(part["quarantined"] for part in report["parts"].values()) == 20
    aside = json.loads((tmp_path / "quarantine.json").read_text())["sequences"]
    assert set(aside) == {f"foreign-{index}" for index in range(20)}
    assert aside["foreign-3"] == pytest.approx(foreign.own_share()[3], abs=1e-3)
    for path in (tmp_path / "quarantine.json", tmp_path / "on_policy.json"):
        assert path.stat().st_mode & 0o77 == 0
    require_on_policy(report)


def with_constraint(table, prefix):
    """The table, with a grammar in the rows whose ids begin with `prefix`."""
    constraints = ["grammar" if one.startswith(prefix) else "" for one in table["sequence_id"]]
    return table.remove_columns("constraint").add_column("constraint", constraints)


def test_sequences_sampled_otherwise_are_neither_judged_nor_set_aside(on_policy, foreign, tmp_path):
    store, table = store_of({"own": on_policy, "foreign": foreign.take(slice(0, 20))}, tmp_path)
    table = with_constraint(table, "foreign")
    slices = slices_of(table)
    report = judge_sequences(store, table, parts_of(table), slices, min_on_policy=0.95)
    unchecked = report["slices"]["tenant"]["foreign"]
    assert (unchecked["not_checked"], unchecked["sequences"], unchecked["quarantined"]) == (
        20,
        0,
        0,
    )
    assert unchecked["verdict"]["cause"] == "not_checked" and unchecked["verdict"]["own"] is None
    assert report["all"]["verdict"]["own"] is True and report["all"]["not_checked"] == 20
    assert json.loads((tmp_path / "quarantine.json").read_text())["sequences"] == {}
    first, second = report_lines(report)
    assert first.startswith(f"On-policy: yes. {len(on_policy)} sequences")
    assert "Not checked: 20, replayed and trained on with hard labels" in second
    require_on_policy(report)
    everything = judge_sequences(
        store, with_constraint(table, ""), parts_of(table), slices, min_on_policy=1
    )
    assert report_lines(everything)[0].startswith(f"On-policy: not checked. All {len(table)} seq")
    require_on_policy(everything)


def test_parts_are_loaded_without_what_is_set_aside(tmp_path):
    parts = {
        "train": ["a", "b", "c"],
        "validation": ["d"],
        "heldout": ["e", "f"],
        "left_out": {"g": "max_train_sequences"},
    }
    (tmp_path / "parts.json").write_text(json.dumps(parts))
    (tmp_path / "manifest.json").write_text("{}")
    write_quarantine(tmp_path, {"b": 0.4, "f": 0.2})
    ids = {"train": ["a", "c"], "validation": ["d"], "heldout": ["e"]}
    assert load_parts(tmp_path, tmp_path) == ids
    write_quarantine(tmp_path, {"b": 0.4, "f": 0.2}, not_captured=["c", "e"])
    with pytest.raises(OutriderError, match="all 2 sequences of the heldout part are quarantined"):
        load_parts(tmp_path, tmp_path)


def test_a_run_stops_where_most_is_foreign(on_policy, foreign, tmp_path):
    _, table = store_of(
        {"own": on_policy.take(slice(0, 10)), "foreign": foreign}, tmp_path / "features"
    )
    table.save_to_disk(tmp_path / "sequences")
    (tmp_path / "parts.json").write_text(json.dumps(parts_of(table)))
    (tmp_path / "slices.json").write_text(json.dumps(slices_of(table)))
    with pytest.raises(
        OutriderError,
        match=r"60 of 70 captured sequences are off-policy .*null: keep",
    ):
        check_on_policy(tmp_path / "sequences", tmp_path, tmp_path / "features", 0.95)
    outcome = check_on_policy(tmp_path / "sequences", tmp_path, tmp_path / "features", None)
    assert outcome["quarantined"] == 0 and outcome["verdict"]["cause"] == "foreign"
