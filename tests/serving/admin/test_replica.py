"""What the controller makes of the answers of replicas with another Outrider."""

import contextlib
import dataclasses
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from hypothesis import given

from outrider.live.fleet import served_by
from outrider.live.state import State
from outrider.serving.admin.replica import (
    FinishedRequests,
    Replica,
    ReplicaStatus,
    ReplicaUnreachable,
    SwapOrder,
    SwapResult,
)
from tests.fuzzing import changed, examples

STATUS = {"version": "v1", "digest": "0" * 64, "k": 3, "kind": "mtp", "directory": "/r/v1"}
REQUEST = {
    "index": 0, "request_id": "r", "version": None, "finished_at": 1.5, "completion_tokens": 4,
    "drafts": 2, "accepted": 1, "ttft_s": 0.1, "decode_s": 0.2, "e2e_s": 0.3, "failed": False,
}  # fmt: skip
ORDER = SwapOrder(directory="/r/v2", version="v2", digest="1" * 64)


class Handler(BaseHTTPRequestHandler):
    answer = b""

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.answer)))
        self.end_headers()
        self.wfile.write(self.answer)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def replica() -> Iterator[Replica]:
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield Replica(f"http://127.0.0.1:{server.server_address[1]}", "token")
        server.shutdown()
        thread.join()


def answering(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    monkeypatch.setattr(Handler, "answer", data)


def test_fields_of_a_later_outrider_are_ignored(replica, monkeypatch) -> None:
    answering(monkeypatch, STATUS | {"added": {"x": 1}})
    assert replica.status().version == "v1"
    answering(monkeypatch, {"read_s": 1, "stall_s": 0.5, "added": 1})
    assert replica.swap(ORDER).stall_s == 0.5
    answering(monkeypatch, {"requests": [REQUEST | {"added": 1}], "next": 1, "added": 2})
    requests, after = replica.requests(0)
    assert (requests[0].drafts, after) == (2, 1)


@pytest.mark.attack("replicas")
@pytest.mark.parametrize(
    "answer",
    [
        [],
        None,
        3,
        "text",
        {},
        {"k": 3},
        STATUS | {"k": "many"},
        b"[" * 100_000,
        b"\xff",
        b"",
        STATUS | {"k": -1},
        STATUS | {"directory": "\0"},
        STATUS | {"reverted_because": "\ud800"},
        STATUS | {"digest": "v1"},
        {"read_s": float("nan"), "stall_s": 1e300},
    ],
    ids=range(15),
)
def test_another_answer_is_a_replica_that_cannot_be_reached(replica, monkeypatch, answer) -> None:
    answering(monkeypatch, answer)
    for call in (replica.status, lambda: replica.swap(ORDER), lambda: replica.requests(0)):
        with pytest.raises(ReplicaUnreachable, match="install the same release"):
            call()


@examples(300)
@given(changed(STATUS), changed({"requests": [REQUEST], "next": 1}), changed({"read_s": 1.0}))
def test_any_answer_is_read_or_is_of_another_outrider(
    status: Any, finished: Any, swap: Any
) -> None:
    replica = Replica("unix:/tmp/outrider-none.sock", "token")
    for form, answer in (
        (ReplicaStatus, status),
        (FinishedRequests, finished),
        (SwapResult, swap),
    ):
        with contextlib.suppress(ReplicaUnreachable):
            read = replica._read(form, answer)
            json.dumps(dataclasses.asdict(read), allow_nan=False)  # a journal can hold it
            if isinstance(read, ReplicaStatus):
                json.dumps(dataclasses.asdict(read), ensure_ascii=False).encode()
                served_by(read, State())
