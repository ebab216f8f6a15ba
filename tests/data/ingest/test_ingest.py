"""Ingest: sequences, rejects, interrupts, workers, and what is refused."""

import contextlib
import hashlib
import hmac
import json
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.common.process_tree import wait_until
from outrider.data.config import PrivacyConfig, TrafficConfig
from outrider.data.exchange import Reject
from outrider.data.files.sources import log_files
from outrider.data.formats.rows.change_events import check_not_deleted
from outrider.data.ingest import chunks
from outrider.data.ingest.chunks import Work
from outrider.data.ingest.ingest import ingest
from outrider.data.sequences import load_sequences
from tests.data.logs import pair, read_exchanges, screenings, write_log

SECRET = "Ada Lovelace, born 1815"


def good_rows(count=20):
    return [
        pair(
            messages,
            reasoning + "\n",
            "\n\n" + answer,
            request__metadata__session_id=f"s{index // 2}",
            response__created=1000 + index,
        )
        for index, (messages, reasoning, answer) in enumerate(screenings(count))
    ]


MESSAGES = [{"role": "user", "content": SECRET}]
BAD = {
    "not_json": b'{"request": {"messages": [{"role": "user", "content": "' + SECRET.encode() + b'"',
    "not_utf8": b'{"request": "\xff\xfe"}',
    "not_an_object": b"[1, 2]",
    "incomplete_pair": {"request": {"messages": MESSAGES}, "response": None},
    "error_response": {
        "request": {"messages": MESSAGES},
        "response": {"error": {"message": SECRET}},
    },
    "no_choices": {"request": {"messages": MESSAGES}, "response": {"choices": []}},
    "duplicate_key": b'{"request": {"messages": [], "messages": []}, "response": {}}',
    "nested_too_deeply": b'{"request": {}, "response": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "no_messages": pair([], "r", "a"),
    "not_text": pair(
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "r", "a"
    ),
    "wrong_type": pair(MESSAGES, "r", "a", request__temperature="warm"),
    "not_finished": pair(MESSAGES, "r", "a", response__choices__0__finish_reason=None),
    "empty_response": pair(MESSAGES, None, None),
    "tool_calls_without_ids": pair(
        MESSAGES, "r", None, response__choices__0__message__tool_calls=[{"id": "1"}]
    ),
    "own_chat_template": pair(MESSAGES, "r", "a", request__chat_template="{{ messages }}"),
    "reasoning_missing": pair(MESSAGES, None, SECRET),
    "token_out_of_vocabulary": pair(
        MESSAGES, "r", "a", response__prompt_token_ids=[0], response__choices__0__token_ids=[128000]
    ),
    "longer_than_target": pair(MESSAGES, SECRET * 1000, "a"),
    "template_refuses": pair([*MESSAGES, {"role": "assistant", "tool_calls": [{}]}], "r", "a"),
}


def run(target, tmp_path, rows, privacy=None, **config):
    log = write_log(tmp_path / "log.jsonl", rows)
    traffic = TrafficConfig(path=str(log), **config)
    return ingest(target, traffic, tmp_path / "out", privacy=privacy)


def test_good_rows_become_sequences(text_target, builder, tmp_path):
    summary = run(text_target, tmp_path, good_rows())
    assert (summary["rows"], summary["exchanges"], summary["rejects"]) == (20, 20, {})
    table = load_sequences(tmp_path / "out" / "sequences")
    row = table[3]
    key = (tmp_path / "out" / "privacy.key").read_bytes()
    assert (
        row["sequence_id"] == "0-4"
        and row["session"] == "s1"
        and row["tenant"] == "acme"
        and row["user"] == "user-" + hmac.digest(key, b"acme", "sha256").hex()[:16]
        and row["time"] == 1003.0
    )
    assert row["temperature"] == pytest.approx(0.7) and row["top_p"] == pytest.approx(0.95)
    assert row["finish_reason"] == "stop" and row["fidelity"] == "retokenized"
    assert row["prompt_text"].endswith("<｜Assistant｜><think>\n")
    _, reasoning, answer = list(screenings(20))[3]
    written = builder.tokenizer.decode(row["token_ids"][row["completion_start"] :])
    assert written == f"{reasoning}\n</think>\n\n{answer}<｜end▁of▁sentence｜>"
    assert load_sequences(tmp_path / "out" / "sequences", ["0-7", "0-2"])["sequence_id"][:] == [
        "0-7",
        "0-2",
    ]
    with pytest.raises(OutriderError, match="1 of 2 sequences are not in the table"):
        load_sequences(tmp_path / "out" / "sequences", ["0-7", "9-9"])


def test_each_bad_row_is_kept_with_its_reason_and_without_its_text(text_target, tmp_path):
    rows = good_rows()
    for index, bad in enumerate(BAD.values()):
        rows.insert(2 * index, bad)
    summary = run(text_target, tmp_path, rows, max_reject_fraction=0.9)
    assert summary["rejects"] == dict.fromkeys(BAD, 1)
    assert summary["exchanges"] == 20
    text = (tmp_path / "out" / "rejects.jsonl").read_text()
    rejects = [json.loads(line) for line in text.splitlines()]
    assert [(reject["reason"], reject["line"]) for reject in rejects] == [
        (reason, 2 * index + 1) for index, reason in enumerate(BAD)
    ]
    assert "Ada" not in text and "1815" not in text


def test_too_many_bad_rows_stop_the_run_and_say_why(text_target, tmp_path):
    rows = [*good_rows(), *[BAD["not_json"]] * 2, BAD["no_choices"]]
    counted = r"3 of 23 rows rejected \(not_json 2, no_choices 1\)"
    with pytest.raises(OutriderError, match=rf"log\.jsonl.*{counted}.*max_reject_fraction = 0\.05"):
        run(text_target, tmp_path, rows)
    written = {path.name for path in (tmp_path / "out").glob("[!.]*")}
    assert written == {"privacy.key", "rejects.jsonl"}
    assert run(text_target, tmp_path, rows, max_reject_fraction=0.2)["exchanges"] == 20


def test_failed_requests_are_no_damage_until_they_are_the_most(text_target, tmp_path):
    failed = [BAD["error_response"]] * 9
    embeddings = [{"request": {"input": SECRET}, "response": {"object": "list", "data": []}}] * 9
    summary = run(text_target, tmp_path, [*good_rows(), *failed, *embeddings])
    assert summary["exchanges"] == 20
    assert summary["rejects"] == {"error_response": 9, "not_a_generation": 9}
    most = [*good_rows(), *failed * 2, *embeddings]
    counts = r"57% of the requests failed .*error_response 18, not_a_generation 9.*"
    with pytest.raises(OutriderError, match=counts + r"max_reject_fraction = 0\.58"):
        run(text_target, tmp_path, most)
    assert run(text_target, tmp_path, most, max_reject_fraction=0.58)["exchanges"] == 20


def test_log_lines_and_spans_are_no_failed_requests(text_target, tmp_path):
    golden = Path(__file__).parents[1] / "golden" / "vllm_log" / "debug.log"
    lines = golden.read_bytes() + b"INFO 07-01 Avg prompt throughput: 0.0 tokens/s\n" * 1000
    (tmp_path / "vllm.log").write_bytes(lines)
    traffic = TrafficConfig(path=str(tmp_path / "vllm.log"), max_reject_fraction=0.9)
    summary = ingest(text_target, traffic, tmp_path / "out")
    assert summary["rejects"]["not_a_generation"] > 1000 > summary["exchanges"] > 0


def test_missing_times_are_null_and_missing_sessions_are_conversations(text_target, tmp_path):
    turns = [{"role": "user", "content": "one"}]
    longer = [*turns, {"role": "assistant", "content": "1"}, {"role": "user", "content": "two"}]
    bare = {"request__metadata": {}, "response__created": None}
    rows = [
        pair(turns, "r", "a", timestamp="2024-05-01T12:00:00Z"),
        pair(turns, "r", "a", **bare),
        pair(longer, "r", "a", **bare, request__user="u7"),
        pair(longer, "r", "a", **bare, session_id="row", timestamp=1714564900000),
        pair([{"role": "user", "content": "other"}], "r", "a", **bare),
        pair(longer, "r", "a", **bare),
    ]
    summary = run(text_target, tmp_path, rows)
    table = load_sequences(tmp_path / "out" / "sequences")
    assert table["time"][:] == [1714564800, None, None, 1714564900, None, None]
    sessions = table["session"][:]
    assert (sessions[0], sessions[2], sessions[3]) == ("s-1", table["user"][2], "row")
    assert sessions[2].startswith("user-") and "u7" not in sessions[2]
    assert sessions[1] == sessions[5] != sessions[4]  # the turns of one conversation
    assert summary["without_time"] == 4


def test_folders_globs_gzip_and_urls(tmp_path):
    nested = tmp_path / "2024" / "05" / "b.jsonl.gz"
    nested.parent.mkdir(parents=True)
    write_log(nested, good_rows(3))
    for name in ("a.jsonl", "c.log", ".hidden"):
        (tmp_path / name).touch()

    def names(*paths):
        return [Path(file.name) for file in log_files(list(map(str, paths)))]

    a = tmp_path / "a.jsonl"
    c = tmp_path / "c.log"
    assert names(tmp_path) == [nested, a, c] == names(tmp_path, c, a)
    assert names(tmp_path / "*.log") == [c]
    assert len(list(read_exchanges(log_files(f"file://{nested}")))) == 3


def test_paths_that_cannot_be_read(text_target, tmp_path):
    (tmp_path / "empty").mkdir()
    for path, message in [
        (tmp_path / "nowhere.jsonl", "no such file or folder"),
        (tmp_path / "empty", "or an empty folder"),
        (tmp_path / "*.jsonl", "no such file or folder"),
        ("nosuch://bucket/x", "nosuch"),
        ("az://bucket/x", "Install adlfs to access"),
    ]:
        with pytest.raises(OutriderError, match=message):
            log_files(str(path))
    with pytest.raises(OutriderError, match=r"choose auto or one of [a-z_]+, "):
        run(text_target, tmp_path, good_rows(1), format="openai_pair")


def test_only_the_owner_can_read_what_is_written(text_target, tmp_path):
    run(text_target, tmp_path, [*good_rows(), BAD["not_json"]], max_reject_fraction=0.5)
    out = tmp_path / "out"
    assert (
        stat.S_IMODE(out.stat().st_mode)
        == stat.S_IMODE((out / "sequences").stat().st_mode)
        == 0o700
    )
    assert {stat.S_IMODE(path.stat().st_mode) for path in (out / "sequences").iterdir()} == {0o600}
    assert stat.S_IMODE((out / "rejects.jsonl").stat().st_mode) == 0o600
    assert stat.S_IMODE((out / "privacy.key").stat().st_mode) == 0o600
    assert sorted(path.name for path in out.iterdir()) == [
        "privacy.key",
        "rejects.jsonl",
        "sequences",
        "summary.json",
    ]


def test_personal_data_is_replaced_before_it_is_tokenized_and_stored(text_target, tmp_path):
    rows = good_rows(4)
    rows[1]["request"]["messages"][-1]["content"] += " Write to ada.lovelace@analytical.org."
    rows[2]["response"]["choices"][0]["message"]["content"] += " To ada.lovelace@analytical.org."
    summary = run(text_target, tmp_path, rows, PrivacyConfig(mode="surrogate"))
    assert summary["exchanges"] == 3 and summary["rejects"] == {"privacy_regenerate": 1}
    counts = json.loads((tmp_path / "out" / "privacy.json").read_text())
    assert (counts["exchanges"], counts["with_any"], counts["replaced"]) == (4, 2, 1)
    texts = load_sequences(tmp_path / "out" / "sequences")["prompt_text"][:]
    assert "Write to " in texts[1] and "ada.lovelace" not in "".join(texts)


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_RECORDS", 7)


@pytest.fixture
def log(tmp_path):
    rows = good_rows(40)
    for index, bad in enumerate(BAD.values()):
        rows.insert(2 * index, bad)
    rows[3]["response"]["created"] = rows[9]["response"]["created"] = None
    return write_log(tmp_path / "log.jsonl", rows)


def ingested(target, log, out, workers=0, **config):
    """SHA-256 by name of all files of an ingest; digests of users have the same key everywhere."""
    traffic = TrafficConfig(path=str(log), max_reject_fraction=0.9, **config)
    key = log.parent / "key"
    key.write_bytes(bytes(32))
    ingest(
        target_dir=target,
        traffic=traffic,
        out_dir=out,
        workers=workers,
        privacy=PrivacyConfig(key_file=str(key)),
    )
    files = (path for path in out.rglob("*") if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_any_number_of_workers_gives_the_same_bytes(
    text_target, log, tmp_path, small_chunks, monkeypatch
):
    alone = ingested(text_target, log, tmp_path / "alone")
    monkeypatch.undo()  # one chunk
    assert ingested(text_target, log, tmp_path / "whole")["rejects.jsonl"] == alone["rejects.jsonl"]
    whole = load_sequences(tmp_path / "whole" / "sequences")
    assert whole.to_list() == load_sequences(tmp_path / "alone" / "sequences").to_list()
    # Chunks are cut in this process, so its workers need no patch.
    monkeypatch.setattr(chunks, "CHUNK_RECORDS", 7)
    assert ingested(text_target, log, tmp_path / "two", workers=2) == alone


def test_an_interrupted_ingest_goes_on(text_target, log, tmp_path, small_chunks, monkeypatch):
    expected = ingested(text_target, log, tmp_path / "expected")
    done = []
    interrupted = []

    made = Work._make

    def make(self, chunk):
        if len(done) in (2, 5) and not interrupted.count(len(done)):
            interrupted.append(len(done))
            raise KeyboardInterrupt
        done.append(chunk.number)
        return made(self, chunk)

    monkeypatch.setattr(Work, "_make", make)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            ingested(text_target, log, tmp_path / "out")
        assert not (tmp_path / "out" / "sequences").exists()
    assert ingested(text_target, log, tmp_path / "out") == expected
    assert done == list(range(len(done))) and len(done) > 6  # each chunk once


def test_parts_of_other_inputs_are_not_used(text_target, log, tmp_path, monkeypatch):
    monkeypatch.setattr("outrider.data.ingest.ingest.check_ingest", None)  # stops before the table
    changed_target = shutil.copytree(text_target, tmp_path / "target")
    (changed_target / "generation_config.json").write_text('{"temperature": 0.5}')
    longer = tmp_path / "longer.jsonl"
    longer.write_bytes(log.read_bytes() + b"\n")
    stamps = []
    for target, path, config in (
        (text_target, log, {}),
        (text_target, log, {"model": "nano-r1"}),
        (text_target, longer, {}),
        (changed_target, log, {}),
    ):
        with pytest.raises(TypeError):
            ingested(target, path, tmp_path / "out", **config)
        stamps.append((tmp_path / "out" / ".parts.json").read_text())
    assert len(set(stamps)) == 4


def test_several_models_are_an_error_that_names_them(text_target, tmp_path):
    names = [
        "deepseek-ai/DeepSeek-R1",
        "deepseek-r1",
        "/models/deepseek-r1/",
        None,
        "DeepSeek-V3",
        "DeepSeek-V3",
    ]
    rows = [
        pair(
            [{"role": "user", "content": "x"}],
            "r",
            "a",
            response__model=name,
            request__model=None,
            response__id=f"chatcmpl-{number}",
        )
        for number, name in enumerate(names)
    ]
    log = write_log(tmp_path / "log.jsonl", rows)
    with pytest.raises(OutriderError, match=r"2 models \(DeepSeek-V3 2, "):
        ingested(text_target, log, tmp_path / "out")
    ingested(text_target, log, tmp_path / "out", model="vendor/DEEPSEEK-R1")
    table = load_sequences(tmp_path / "out" / "sequences")
    assert table["model"][:] == ["deepseek-ai/DeepSeek-R1", "deepseek-r1", "/models/deepseek-r1/"]


JOIN = """
import sys
from pathlib import Path
from outrider.data.config import TrafficConfig
from outrider.data.ingest.ingest import ingest
ingest(Path(sys.argv[1]), TrafficConfig(path=sys.argv[2]), Path(sys.argv[3]), workers=0)
"""


def has_rows_on_disk(process, folder):
    """Whether the process has a file of 1 MB open in `folder`, with a name or without."""
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            is_inside = str(descriptor.readlink()).startswith(str(folder))
            if is_inside and descriptor.stat().st_size > 2**20:
                return True
    return False


def test_a_kill_between_the_halves_of_exchanges_leaves_no_row(text_target, tmp_path):
    message = {"role": "user", "content": SECRET + "x" * 1000}
    requests = [{"id": f"r{n}", "model": "r1", "messages": [message]} for n in range(50_000)]
    log = write_log(tmp_path / "log.jsonl", requests)
    out = tmp_path / "out"
    with subprocess.Popen([sys.executable, "-c", JOIN, text_target, log, out]) as process:
        joining = wait_until(lambda: has_rows_on_disk(process, out), 300)
        process.kill()
    assert joining and process.returncode == -9
    left = [path for path in out.rglob("*") if path.is_file()]
    assert not [path for path in left if SECRET.encode() in path.read_bytes()]


def test_a_log_of_changes_with_a_deletion_is_refused(text_target, tmp_path):
    rows = [{"payload": {"before": None, "after": row, "op": "c"}} for row in good_rows(3)]
    path = write_log(tmp_path / "changes.jsonl", rows)
    summary = ingest(text_target, TrafficConfig(path=str(path)), tmp_path / "kept")
    assert summary["exchanges"] == 3
    rows.append({"payload": {"before": rows[0]["payload"]["after"], "after": None, "op": "d"}})
    write_log(path, rows)
    with pytest.raises(OutriderError, match=r"1 of 4 rows are changes that delete rows.* export"):
        ingest(text_target, TrafficConfig(path=str(path)), tmp_path / "deleted")


@pytest.mark.parametrize(
    "deletion",
    [
        {"op": "d", "before": {"id": 1}, "after": None},
        {"id": 1, "__deleted": "true"},
        {"Op": "D", "id": 1},
        {"type": "delete", "database": "gateway", "table": "calls", "data": {"id": 1}},
        {"eventName": "REMOVE", "dynamodb": {"Keys": {"id": {"N": "1"}}}},
    ],
)
def test_deletions_are_recognized_in_each_tools_form(deletion):
    with pytest.raises(Reject) as rejected:
        check_not_deleted(deletion)
    assert rejected.value.reason == "deletes_rows"


@pytest.mark.parametrize("row", [{"op": "d"}, {"type": "delete"}, {"Op": "I"}, good_rows(1)[0]])
def test_other_rows_are_no_deletions(row):
    check_not_deleted(row)


def test_a_row_that_is_marked_as_deleted_is_set_aside(text_target, tmp_path):
    rows = good_rows(3)
    rows[1]["_fivetran_deleted"] = True
    path = write_log(tmp_path / "synced.jsonl", rows)
    summary = ingest(text_target, TrafficConfig(path=str(path)), tmp_path / "out")
    assert (summary["exchanges"], summary["rejects"]) == (2, {"deleted": 1})


def test_requests_without_sampling_are_sampled_as_the_engine_is_started(text_target, tmp_path):
    """vllm/config/model.py, get_diff_sampling_param: file, folder or neutral, then overrides."""
    target = shutil.copytree(text_target, tmp_path / "target")
    (target / "generation_config.json").write_text('{"temperature": 0.6, "top_p": 0.95}')
    other = tmp_path / "other"
    other.mkdir()
    (other / "generation_config.json").write_text('{"temperature": 0.3}')
    path = write_log(
        tmp_path / "log.jsonl", [pair(MESSAGES, "r\n", "a", request__temperature=None)]
    )
    for number, (generation, temperature, top_p) in enumerate(
        [
            (None, 0.6, 0.95),
            ({"generation_config": "auto"}, 0.6, 0.95),
            ({"generation_config": "vllm"}, 1.0, 1.0),
            ({"generation_config": str(other)}, 0.3, 1.0),
            ({"override_generation_config": {"temperature": 0.2}}, 0.2, 0.95),
            (
                {"generation_config": "vllm", "override_generation_config": {"top_p": 0.5}},
                1.0,
                0.5,
            ),
        ]
    ):
        out = tmp_path / str(number)
        ingest(target, TrafficConfig(path=str(path)), out, generation=generation)
        (sequence,) = load_sequences(out / "sequences")
        sampled = (sequence["temperature"], sequence["top_p"])
        assert sampled == pytest.approx((temperature, top_p)), generation
