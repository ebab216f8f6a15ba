"""Any JSON in a file that a process or a user wrote: read, or an `OutriderError`.

A case is valid content and the reader of the file that has it. Each of a case's examples changes
the content at some depth. Other files have tests of their own: bundle.json, records of stages,
journals of deployments, answers of replicas, config.json of targets.
"""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outrider.adapt.state import AdaptState
from outrider.common.errors import OutriderError
from outrider.common.fingerprint import CachedResult
from outrider.data.features.answers import stored_answers
from outrider.data.features.capture import _end_ids
from outrider.data.features.feature_store import FeatureStore
from outrider.data.features.feature_writer import FeatureWriter
from outrider.data.on_policy.check import load_parts
from outrider.data.split.slices import load_slices
from outrider.data.split.split import read_parts, read_sessions
from outrider.data.streamed import StreamedFeatures
from outrider.data.tokenize.tokens import sampling_defaults
from outrider.eval.report.report import training_metrics
from outrider.live.journal import read_journal, state_after
from outrider.pipeline.retention import apply_retention, deletion_of
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.adapt import _read_plan
from outrider.pipeline.stages.evaluate import read_kinds
from outrider.serving.bundle.model_card import model_card
from outrider.serving.bundle.oci_layout import read_oci_layout
from outrider.serving.config import _without_config
from outrider.serving.engine import AskedRow
from outrider.serving.speculator import Speculator
from outrider.speculators.checkpoints.layout import read_target_config, weight_map
from outrider.speculators.checkpoints.safetensors_headers import tensor_headers
from outrider.speculators.features import FINAL_NORM, FeatureSpec, FeatureStream, SequenceStates
from outrider.training.checkpoints import saved_states
from outrider.training.distributed.fail_fast import describe_rank_errors, read_errors
from outrider.training.metrics import Metrics
from tests.fuzzing import any_json, examples
from tests.serving.bundle.test_oci_layout import put_image
from tests.serving.exported import write_exported

SPEC = FeatureSpec((FeatureStream(FINAL_NORM, 4),))


@dataclasses.dataclass(frozen=True)
class Case:
    """A file, its valid content, and what reads it."""

    name: str
    content: Any
    """A list of values is a file of lines if the name ends with .jsonl."""
    read: Callable[[Path], object]
    """Takes the folder."""
    prepare: Callable[[Path], object] = lambda folder: None
    """Writes what else is in the folder."""


def write_states(folder: Path) -> None:
    """A store of two sequences in two shards."""
    with FeatureWriter(folder, SPEC, {"target": "x"}, shard_megabytes=1e-6) as writer:
        for name in ("0-1", "0-2"):
            token_ids = torch.arange(3, dtype=torch.int32)
            writer.write(name, SequenceStates(token_ids, 1, {FINAL_NORM: torch.ones(3, 4)}))


def written_states(tmp_path_factory: pytest.TempPathFactory, name: str) -> Any:
    folder = tmp_path_factory.mktemp("states")
    write_states(folder)
    text = (folder / name).read_text()
    return [*map(json.loads, text.splitlines())] if name.endswith(".jsonl") else json.loads(text)


def read_store(folder: Path) -> None:
    store = FeatureStore.open(folder)
    for name in store.sequence_ids:
        store.length(name)
    store.manifest.header.as_json()


def continue_store(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    FeatureWriter(folder, SPEC, {"target": "x"})


def forget(folder: Path) -> None:
    metrics = Metrics.__new__(Metrics)
    metrics.path = folder / "metrics.jsonl"
    metrics.accelerator = SimpleNamespace(is_main_process=True)
    metrics.forget_after(5)


def fold(folder: Path) -> None:
    path = folder / "journal.jsonl"
    state = AdaptState()
    for entry in read_journal(path):
        state = state_after(state, entry, path)
    assert state.last_trained >= 0 and state.losses >= 0
    assert len([*state.fresh, *state.older]) <= len(state.usable)
    sum(seconds for _, seconds in state.spent)
    json.dumps([dataclasses.asdict(round_) for round_ in state.rounds])


def take_answers(folder: Path) -> None:
    row = AskedRow("0-1", token_ids=[1], temperature=1.0, top_p=1.0, max_tokens=4)
    stored_answers(lambda batch: [[7]], [row], folder / "answers.json", {"digest": "x"}, 100)


ESTIMATE = {
    "value": 1.5, "low": 1.4, "high": 1.6, "observations": 90, "clusters": 20, "over": "sessions",
}  # fmt: skip
SPEED = {
    "kind": "mtp", "k": 3, "step_ms": 2.0, "runner": "v1", "step_ms_by_k": {"1": 1.5},
    "acceptance_length": ESTIMATE,
}  # fmt: skip
STREAM = {
    "address": "auto", "namespace": "n", "replicas": ["a"], "start_timeout_s": 1.0,
    "limit_bytes": 9, "features": SPEC.as_list(), "capture": {}, "tables": ["/none"], "limit": 9,
    "store": "/none",
}  # fmt: skip
RUN = {"deleted": {"features": "2026-08-01, privacy.retention = delete_features"}}
PARTS = {"train": ["0-1"], "validation": ["0-2"], "heldout": ["0-3"], "sessions": {"0-1": "s"}}
PROFILE = {"sequences": 3, "tokens": 9.0, "acceptance_length": [1.5], "acceptance": [0.5]}
STATE = {
    "digest": "x", "refit": False, "base": PROFILE, "best": PROFILE, "best_step": 3,
    "started_over": 0, "latest": PROFILE, "evaluated_at": 3, "start_peak_bytes": 0, "step": 3,
}  # fmt: skip
WATCHED = {"acceptance": ESTIMATE, "gpu_seconds": 4.0}
JOURNAL = [
    {"at": 1.0, "event": "start", "position": {"a": 0}},
    {"at": 2.0, "event": "window", "window": 1, "rows": 100, "position": {"a": 9}},
    {"at": 2.5, "event": "watched", "window": 1, "release": "x", "ratio": None, **WATCHED},
    {"at": 3.0, "event": "round", "round": 1, "newer": [1], "older": [], "reason": ""},
    {"at": 4.0, "event": "trained", "round": 1, "sequences": 90, "gpu_seconds": 5.0},
    {"at": 5.0, "event": "gated", "round": 1, "ships": True, "reason": "", "gpu_seconds": 1.0},
    {"at": 6.0, "event": "deployed", "round": 1, "outcome": "promoted"},
    {"at": 7.0, "event": "deleted", "windows": [1]},
]  # fmt: skip
ERROR = {"rank": 0, "message": "x", "exit_code": 1, "expected": True, "at": 1.0}
BY_TENSOR = {"model.norm.weight": "a.safetensors", "lm_head.weight": "b.safetensors"}
GENERATION = {"eos_token_id": [1, 2], "temperature": 0.6, "top_p": 0.95}


def run_of(folder: Path) -> RunDirectory:
    return RunDirectory(folder)


CASES = [
    Case("retention.json", RUN, lambda folder: deletion_of(run_of(folder), folder / "features")),
    Case(
        "retention.json",
        RUN,
        lambda folder: apply_retention(run_of(folder), "delete_features"),
        lambda folder: (folder / "features" / "x").mkdir(parents=True, exist_ok=True),
    ),
    Case("parts.json", PARTS, read_parts),
    Case("parts.json", PARTS, read_sessions),
    Case("slices.json", {"tenant": {"acme": ["0-1"]}}, load_slices),
    Case(
        "quarantine.json",
        {"manifest_sha256": "x", "sequences": {"0-4": 0.5}, "not_captured": ["0-5"]},
        lambda folder: load_parts(folder, folder),
        lambda folder: (folder / "parts.json").write_text(json.dumps(PARTS)),
    ),
    Case("answers.json", {"source": {"digest": "x"}, "answers": {"0-1": [5, 6]}}, take_answers),
    Case("metrics.jsonl", [{"step": 1, "loss": 2.0}, {"step": 9}], forget),
    Case("metrics.jsonl", [{"step": 1, "loss": 2.0}, {"step": 9}], training_metrics),
    Case(
        "step-0000003/state.json",
        STATE,
        saved_states,
        lambda folder: (folder / "step-0000003").mkdir(exist_ok=True),
    ),
    Case(
        "error.rank0.json",
        ERROR,
        lambda folder: describe_rank_errors(read_errors(folder), processes=2),
    ),
    Case("round.json", {"number": 1, "newer": ["a"], "older": []}, lambda f: _read_plan(run_of(f))),
    Case(
        "evaluation/kinds.json",
        [SPEED],
        lambda folder: read_kinds(run_of(folder))[0].kind,
        lambda folder: (folder / "evaluation").mkdir(exist_ok=True),
    ),
    Case("stream.json", STREAM, StreamedFeatures.open),
    Case("journal.jsonl", JOURNAL, fold),
    Case("model.safetensors.index.json", {"weight_map": BY_TENSOR}, weight_map),
    Case("model.safetensors.index.json", {"weight_map": BY_TENSOR}, tensor_headers),
    Case("generation_config.json", GENERATION, lambda folder: sampling_defaults(folder, {})),
    Case("generation_config.json", GENERATION, lambda folder: _end_ids(folder, {})),
    Case(
        "hf_quant_config.json",
        {"quantization": {"quant_algo": "FP8"}},
        read_target_config,
        lambda folder: (folder / "config.json").write_text('{"architectures": ["X"]}'),
    ),
    Case("adapter_config.json", {"base_model_name_or_path": "a/b"}, _without_config),
    Case(
        "kept.json",
        {"inputs": {"a": 1}, "result": 2},
        lambda f: CachedResult(f / "kept.json", 1).get(),
    ),
]


def check(case: Case, folder: Path, content: Any) -> None:
    """Reads the case's file with this content: an `OutriderError` of one line, or no error."""
    is_lines = case.name.endswith(".jsonl") and isinstance(content, list)
    text = "".join(f"{json.dumps(line)}\n" for line in content) if is_lines else json.dumps(content)
    (folder / case.name).write_text(text)
    try:
        case.read(folder)
    except OutriderError as error:
        assert str(error) and "\n" not in str(error)


@pytest.mark.parametrize("case", CASES, ids=[f"{n}-{case.name}" for n, case in enumerate(CASES)])
@examples(60)
@given(data=st.data())
def test_any_json_is_read_or_refused(tmp_path: Path, case: Case, data: st.DataObject) -> None:
    case.prepare(tmp_path)
    check(case, tmp_path, data.draw(any_json(case.content)))


@pytest.mark.parametrize(
    ("name", "read"), [("manifest.json", read_store), ("journal.jsonl", continue_store)]
)
@examples(100)
@given(data=st.data())
def test_any_index_of_states_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    read: Callable[[Path], None],
    data: st.DataObject,
) -> None:
    folder = tmp_path_factory.mktemp("states")
    write_states(folder)
    content = data.draw(any_json(written_states(tmp_path_factory, name)))
    check(Case(name, content, read), folder, content)


@examples(100)
@given(data=st.data())
def test_any_manifest_has_a_card_or_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = write_exported(tmp_path_factory.mktemp("bundle") / "bundle")
    manifest = json.loads((folder / "bundle.json").read_text())
    content = data.draw(any_json(manifest))
    check(Case("bundle.json", content, lambda bundle: model_card(bundle, "a/b")), folder, content)
    (folder / "config.json").unlink()
    check(Case("bundle.json", content, Speculator.from_name), folder, content)


@examples(100)
@given(data=st.data())
def test_any_layout_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    layout = tmp_path_factory.mktemp("layout")
    address = put_image(layout, [], platforms=2)
    index = json.loads((layout / "index.json").read_text())
    part = data.draw(st.sampled_from(["index.json", "platforms", "manifest"]))
    if part == "index.json":
        index = data.draw(any_json(index))
    else:
        path = layout / "blobs" / "sha256" / index["manifests"][0]["digest"].partition(":")[2]
        entry = index["manifests"][0]
        if part == "manifest":
            inner = json.loads(path.read_text())["manifests"][0]["digest"].partition(":")[2]
            path = path.with_name(inner)
        blob = json.dumps(data.draw(any_json(json.loads(path.read_text())))).encode()
        entry["digest"] = f"sha256:{hashlib.sha256(blob).hexdigest()}"
        path.with_name(entry["digest"].partition(":")[2]).write_bytes(blob)
    (layout / "index.json").write_text(json.dumps(index))
    out = tmp_path_factory.mktemp("out")
    with contextlib.suppress(OutriderError):
        read_oci_layout(address, out)


def test_the_valid_contents_are_read(tmp_path: Path) -> None:
    for number, case in enumerate(CASES):
        folder = tmp_path / str(number)
        folder.mkdir()
        case.prepare(folder)
        is_lines = case.name.endswith(".jsonl")
        lines = "".join(f"{json.dumps(line)}\n" for line in case.content) if is_lines else ""
        (folder / case.name).write_text(lines or json.dumps(case.content))
        try:
            case.read(folder)
        except OutriderError as error:
            assert case.name in {"stream.json", "model.safetensors.index.json"}, error
