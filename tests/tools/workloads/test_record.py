"""The recorder of workloads, on a random Llama that a real server runs."""

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from outrider.common.errors import OutriderError
from outrider.data.exchange import Exchange, Place, Record
from outrider.data.formats.readers import openai_pairs
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.server import Server
from tests.tiny_decoders import write_tiny_decoder
from tools.workloads.document_extraction import response_format
from tools.workloads.record import Part, parts_of, record
from tools.workloads.sessions import Message, Session, Turn
from tools.workloads.workloads import Workload


def turn(text: str, form: dict[str, Any] | None = None) -> Turn:
    return Turn((Message("user", text),), form)


SESSIONS = [
    Session("ada", (turn("A tea, please."), turn("With milk."), turn("Yes."))),
    Session("ben", (turn("Coffee!"), turn("Black."))),
    Session("ada", (turn("A bun.", response_format("summary")),)),
]


def rows_of(part: Part) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(part.path.read_bytes()).splitlines()]


def test_parts_are_whole_sessions_in_order(tmp_path: Path) -> None:
    parts = parts_of("chat", SESSIONS, tmp_path, part_responses=2)
    assert [part.path.name for part in parts] == [
        f"part-00{number}.jsonl.gz" for number in range(3)
    ]
    planned = [session for part in parts for session in part.sessions]
    assert [session.session for session in planned] == SESSIONS
    larger = parts_of("chat", SESSIONS, tmp_path, part_responses=4)
    assert [len(part.sessions) for part in larger] == [2, 1]
    assert [session for part in larger for session in part.sessions] == planned


def test_a_part_of_other_sessions_is_refused(tmp_path: Path) -> None:
    (part,) = parts_of("chat", SESSIONS, tmp_path)
    assert not part.is_recorded()
    part.path.parent.mkdir()
    part.path.write_bytes(gzip.compress(b'{"session_id": "chat-0000"}\n'))
    with pytest.raises(OutriderError, match=r"part-000\.jsonl\.gz: 1 responses of other sessions"):
        part.is_recorded()


@pytest.mark.slow
def test_sessions_are_answered_in_order_and_parts_once(nano_r1: Path, tmp_path: Path) -> None:
    target = write_tiny_decoder(
        "LlamaForCausalLM", tmp_path / "smollm2", vocabulary=4096, tokenizer_of=nano_r1
    )
    workload = Workload(lambda _: SESSIONS, 0.7, max_tokens=12, keeps_history=True)
    parts = parts_of("chat", SESSIONS, tmp_path / "log", part_responses=3)
    engine = EngineConfig(max_model_len=512, dtype="float32")
    with Server(TargetConfig(model=str(target)), engine, log_path=tmp_path / "server") as server:
        assert not record(workload, parts, server, deadline=0)
        assert not (tmp_path / "log").exists()
        assert record(workload, parts, server)
        first, second = rows_of(parts[0]), rows_of(parts[1])
        parts[1].path.unlink()
        assert record(workload, parts, server)
    assert rows_of(parts[0]) == first
    assert [row["request"]["messages"][0] for row in rows_of(parts[1])] == [
        row["request"]["messages"][0] for row in second
    ]
    rows = [*first, *second]
    names = ["chat-0000"] * 3 + ["chat-0001"] * 2 + ["chat-0002"]
    assert [row["session_id"] for row in rows] == names
    times = [row["timestamp"] for row in rows]
    assert times == sorted(set(times))
    assert [len(row["request"]["messages"]) for row in rows] == [1, 3, 5, 1, 3, 1]
    for earlier, later in itertools.pairwise(first):
        answer = earlier["response"]["choices"][0]["message"]["content"]
        history = [*earlier["request"]["messages"], {"role": "assistant", "content": answer}]
        assert later["request"]["messages"][:-1] == history
    assert "return_token_ids" not in rows[0]["request"]
    check_exchanges(rows, AutoTokenizer.from_pretrained(target))


def check_exchanges(rows: list[dict[str, Any]], tokenizer: Any) -> None:
    """The log's reader finds token ids, session, user, sampling and grammar of every row."""
    for row in rows:
        (exchange,) = openai_pairs.parse(Record(Place("log", 1), json.dumps(row).encode()))
        assert isinstance(exchange, Exchange)
        assert exchange.session == row["session_id"] and exchange.user == row["user_id"]
        assert exchange.time == row["timestamp"] and exchange.temperature == 0.7
        assert (exchange.grammar is not None) == ("response_format" in row["request"])
        prompt = tokenizer.decode(row["response"]["prompt_token_ids"])
        assert row["request"]["messages"][-1]["content"] in prompt
        token_ids = row["response"]["choices"][0]["token_ids"]
        assert 0 < len(token_ids) <= 12
