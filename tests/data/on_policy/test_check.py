"""Capture with a real engine, from the log to the verdicts: nano R1 knows its own text.

One log has groups of one kind each, as tenants: genuine exchanges, answers to other prompts,
prompts of another template.
"""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from outrider.data.config import CaptureConfig, PrivacyConfig, TrafficConfig
from outrider.data.features.answers import FURTHER, further_rows, logged_id, with_further
from outrider.data.features.capture import ONLY_FINAL, capture_in_process
from outrider.data.features.capture_plan import CapturePlan
from outrider.data.features.feature_store import FeatureStore
from outrider.data.ingest.ingest import ingest
from outrider.data.on_policy.check import check_on_policy
from outrider.data.sequences import load_sequences
from outrider.data.split.slices import name_slices, write_slices
from outrider.data.tokenize.tokens import load_tokenizer
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import open_engine
from outrider.serving.token_scores import COLUMNS
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.features import FeatureSpec, FeatureStream
from tests.data.logs import write_log
from tests.shipped_traffic import with_token_ids

WORKLOADS = ("general", "document_extraction", "social_chat")
MIN_ON_POLICY = 0.95
END = 1
"""Nano R1's end token."""
SMALL_SHARDS = CaptureConfig(batch_tokens=2000).model_copy(update={"shard_megabytes": 0.5})
LAYERS = FeatureSpec(tuple(FeatureStream(f"layer_{index}", 192) for index in (13, 2, 8)))
"""What an EAGLE-3 head reads of nano R1."""


def other_prompts(rows):
    """Each prompt with the answer of the next one."""
    responses = [row["response"]["choices"] for row in rows]
    return [
        {**row, "response": {**row["response"], "choices": choices}}
        for row, choices in zip(rows, responses[1:] + responses[:1], strict=True)
    ]


def other_template(rows):
    """Rendered without the `<think>\\n` with which R1's template opens the answer."""
    return [
        {
            **row,
            "response": {
                **row["response"],
                "prompt_token_ids": row["response"]["prompt_token_ids"][:-2],
            },
        }
        for row in rows
    ]


KINDS = {
    "genuine": (list, 20, "own"),
    "other-prompts": (other_prompts, 10, "foreign"),
    "other-template": (other_template, 10, "template"),
}
"""By tenant: how exchanges are changed, their number and cause."""


@pytest.fixture(scope="module")
def engine(nano_r1):
    # Prompts are prefilled in chunks and together.
    engine = EngineConfig(max_num_batched_tokens=512)
    with open_engine(TargetConfig(model=str(nano_r1)), engine) as engine:
        yield engine


@pytest.fixture(scope="module")
def sequences(nano_r1, tmp_path_factory):
    """A run's folder with the log's sequences, in three parts, and their slices."""
    run = tmp_path_factory.mktemp("run")
    pool = [row for rows in zip(*map(with_token_ids, WORKLOADS), strict=False) for row in rows]
    rows = []
    for tenant, (change, count, _) in KINDS.items():
        changed = change([pool.pop(0) for _ in range(count)])
        rows += [{**row, "tenant": tenant} for row in changed]
    log = write_log(run / "log.jsonl", rows)
    summary = ingest(nano_r1, TrafficConfig(path=str(log)), run, workers=0)
    assert summary["exchanges"] == summary["fidelity"]["exact"] == len(rows)
    divide_by_turns(run)
    return run


def divide_by_turns(run):
    """Parts and slices without the split's rules, which would leave rows out."""
    table = load_sequences(run / "sequences")
    ids = table["sequence_id"][:]
    parts = {"train": ids[::2], "validation": ids[1::4], "heldout": ids[3::4]}
    (run / "parts.json").write_text(json.dumps(parts))
    write_slices(name_slices(table), run)


def captured(engine, nano_r1, run, config, features=ONLY_FINAL):
    plan = CapturePlan(
        table=load_sequences(run / "sequences"),
        limit=engine.max_model_len - 1,
        spec=features.stored(192),
        source={"run": str(run)},
        settings=config,
        out_dir=run / "features",
        score_columns=COLUMNS,
    )
    return capture_in_process(plan, engine, load_target_ends(nano_r1).lm_head_VH)


@pytest.fixture(scope="module")
def judged(engine, nano_r1, sequences):
    """Summaries of the capture and of the check, and its report."""
    summary = captured(engine, nano_r1, sequences, SMALL_SHARDS, features=LAYERS)
    checked = check_on_policy(
        sequences / "sequences", sequences, sequences / "features", MIN_ON_POLICY
    )
    return summary, checked, json.loads((sequences / "features" / "on_policy.json").read_text())


@pytest.mark.engine
def test_every_sequence_is_captured_and_the_states_pass_their_checks(judged, sequences):
    summary, _, _ = judged
    rows = load_sequences(sequences / "sequences")
    store = FeatureStore.open(sequences / "features")
    assert store.spec.names == ("final_norm", "layer_2", "layer_8", "layer_13")
    assert all(share > 0.99 for share in summary["layer_check"]["nearest"].values())
    assert summary["self_check"]["p99_difference"] < 0.1
    assert store.sequence_ids == rows["sequence_id"][:]
    assert summary["sequences"] == len(rows) and summary["shards"] > 1
    for row in rows:
        features = store.read(row["sequence_id"])
        assert features.token_ids.tolist() == row["token_ids"]
        assert features.completion_start == row["completion_start"]
        assert features.hidden.isfinite().all()
        inputs = LAYERS.inputs(features)
        assert inputs.shape == (len(row["token_ids"]), 3 * 192) and inputs.isfinite().all()


@pytest.mark.engine
@pytest.mark.parametrize("tenant", KINDS)
def test_each_kind_is_told_from_genuine_traffic(judged, tenant):
    _, _, cause = KINDS[tenant]
    verdict = judged[2]["slices"]["tenant"][tenant]["verdict"]
    assert (verdict["own"], verdict["cause"]) == (cause == "own", cause), verdict["text"]


RECEIPT = {
    "type": "object",
    "properties": {"company": {"type": "string", "maxLength": 30}, "total": {"type": "number"}},
    "required": ["company", "total"],
}


def constrained_rows(engine, count):
    """Receipts that the engine reads under a schema, as vLLM and a gateway log them."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    rows = list(itertools.islice(with_token_ids("document_extraction"), count))
    sampling = [
        SamplingParams(
            temperature=0.6,
            top_p=0.95,
            max_tokens=80,
            structured_outputs=StructuredOutputsParams(json=RECEIPT),
        )
        for _ in rows
    ]
    prompts = [{"prompt_token_ids": row["response"]["prompt_token_ids"]} for row in rows]
    outputs = engine.llm.generate(prompts, sampling, use_tqdm=False)
    for row, output in zip(rows, outputs, strict=True):
        (choice,) = row["response"]["choices"]
        choice["token_ids"] = list(output.outputs[0].token_ids)
        choice["finish_reason"] = output.outputs[0].finish_reason
        row["response"].pop("usage", None)
        row["request"]["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "receipt", "schema": RECEIPT},
        }
    return rows


@pytest.mark.slow
@pytest.mark.engine
def test_a_logged_grammar_is_part_of_the_distribution(engine, nano_r1, tmp_path):
    """Under its schema the text is on-policy; without, the same text is not."""
    rows = constrained_rows(engine, 24)
    for name in ("with", "without"):
        log = write_log(tmp_path / f"{name}.jsonl", rows)
        run = tmp_path / name
        summary = ingest(nano_r1, TrafficConfig(path=str(log)), run, workers=0)
        assert summary["constraints"] == ({"grammar": 24} if name == "with" else {})
        divide_by_turns(run)
        captured(engine, nano_r1, run, CaptureConfig())
        check_on_policy(run / "sequences", run, run / "features", min_on_policy=None)
        for row in rows:
            row["request"].pop("response_format", None)
    reports = [
        json.loads((tmp_path / name / "features" / "on_policy.json").read_text())["all"]
        for name in ("with", "without")
    ]
    masked, unmasked = reports
    assert (masked["masked"], masked["not_checked"], masked["unusable_grammars"]) == (24, 0, 0)
    assert masked["verdict"]["own"] is True, masked["verdict"]["text"]
    assert unmasked["masked"] == 0 and unmasked["verdict"]["own"] is False


def with_an_address(row):
    """A request with an address that the answer repeats; logged as text alone."""
    messages = row["request"]["messages"]
    choice = row["response"]["choices"][0]
    asked = [
        *messages[:-1],
        {**messages[-1], "content": messages[-1]["content"] + " I am ada@lovelace.org."},
    ]
    message = {
        **choice["message"],
        "content": (choice["message"]["content"] or "") + " Write to ada@lovelace.org.",
    }
    response = {
        **row["response"],
        "prompt_token_ids": None,
        "choices": [{**choice, "message": message, "token_ids": None}],
    }
    return {**row, "request": {**row["request"], "messages": asked}, "response": response}


@pytest.mark.engine
def test_the_target_answers_the_prompts_of_a_small_log_again(engine, nano_r1, tmp_path):
    """Further answers are its own by the on-policy check, and follow the logged grammar."""
    pool = iter(with_token_ids("document_extraction"))
    log = write_log(tmp_path / "log.jsonl", [next(pool) for _ in range(6)])
    ingest(nano_r1, TrafficConfig(path=str(log)), tmp_path, workers=0)
    table = load_sequences(tmp_path / "sequences")
    grammar = '{"choice": ["receipt", "invoice"]}'
    constrained = ["0-4", "0-5"]
    texts = [grammar if name in constrained else "" for name in table["sequence_id"]]
    table = table.remove_columns("grammar").add_column("grammar", texts)
    train = table["sequence_id"][:]
    requests = further_rows(
        table, train, up_to=10, limit=400, end_ids={END}, compiles=lambda _: True
    )
    plan = CapturePlan(
        table=table,
        limit=engine.max_model_len - 1,
        spec=ONLY_FINAL.stored(192),
        source={"run": str(tmp_path)},
        settings=CaptureConfig(),
        out_dir=tmp_path / "features",
        score_columns=COLUMNS,
        further=requests,
    )
    lm_head_VH = load_target_ends(nano_r1).lm_head_VH
    result = capture_in_process(plan, engine, lm_head_VH)
    assert (result["further_answers"], result["sequences"]) == (4, 10)
    store = FeatureStore.open(plan.out_dir)
    answered = with_further(train, store.sequence_ids)
    further = [name for name in answered if name not in train]
    assert sorted(further) == sorted(row.row_id for row in requests)
    decode = load_tokenizer(nano_r1).decode
    for name in further:
        states = store.read(name)
        logged = table[train.index(logged_id(name))]
        start = logged["completion_start"]
        assert states.completion_start == start
        assert states.token_ids[:start].tolist() == logged["token_ids"][:start]
        answer = states.token_ids[start:].tolist()
        if logged_id(name) in constrained:
            assert decode(answer, skip_special_tokens=True) in ("receipt", "invoice")
        else:
            totals = np.sum(store.scores(name), axis=0)
            score = dict(zip(COLUMNS, totals, strict=True))
            assert score["tokens"] == len(answer)
            excess = score["unlikely"] - score["unlikely_expected"]
            assert excess < (1 - MIN_ON_POLICY) * len(answer)
    # With other settings, nothing of them is left.
    as_logged = replace(plan, further=(), source={"run": "as logged"})
    assert capture_in_process(as_logged, engine, lm_head_VH)["further_answers"] == 0
    assert not (plan.out_dir / FURTHER).exists()
    assert with_further(train, FeatureStore.open(plan.out_dir).sequence_ids) == train


@pytest.mark.engine
def test_responses_with_personal_data_are_given_anew(engine, nano_r1, tmp_path):
    def length(row):
        return len(row["response"]["choices"][0]["token_ids"])

    longer = (row for row in with_token_ids("social_chat") if length(row) > 30)
    rows = sorted(longer, key=length)[:8]
    log = write_log(tmp_path / "log.jsonl", [*map(with_an_address, rows[:5]), *rows[5:]])
    privacy = PrivacyConfig(mode="surrogate", regenerate=True, entities=["EMAIL_ADDRESS"])
    summary = ingest(nano_r1, TrafficConfig(path=str(log)), tmp_path, workers=0, privacy=privacy)
    assert summary["fidelity"] == {"regenerate": 5, "exact": 3}
    divide_by_turns(tmp_path)
    result = captured(engine, nano_r1, tmp_path, CaptureConfig(batch_tokens=200))
    assert (result["regenerated"], result["sequences"]) == (5, 8)
    table = load_sequences(tmp_path / "sequences")
    store = FeatureStore.open(tmp_path / "features")
    ended = 0
    for row in table:
        features = store.read(row["sequence_id"])
        ids = features.token_ids.tolist()
        start = row["completion_start"]
        assert ids[:start] == row["token_ids"][:start] and features.completion_start == start
        if row["fidelity"] == "exact":
            assert ids == row["token_ids"]
            continue
        assert ids != row["token_ids"] and start < len(ids) <= len(row["token_ids"])
        ended += ids[-1] == END
        assert END not in ids[start:-1]
    assert ended, "no answer ended by itself: the engine's end token is lost"
    check_on_policy(tmp_path / "sequences", tmp_path, tmp_path / "features", MIN_ON_POLICY)
    report = json.loads((tmp_path / "features" / "on_policy.json").read_text())
    assert report["slices"]["fidelity"]["regenerate"]["verdict"]["own"] is True
    assert report["slices"]["fidelity"]["regenerate"]["below_1e4"] < 0.01
