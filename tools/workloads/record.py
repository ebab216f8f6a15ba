"""Records a workload's log in parts, each a file of about 100 responses.

    with recording_server(target, "bfloat16", out / "server.log") as server:
        record(WORKLOADS[name], parts_of(name, sessions, out), server)

`out_dir/NAME/part-000.jsonl.gz` and so on hold whole sessions. A part is published once all of its
responses are there, and is never recorded again. Each row is a pair of OpenAI's request and
response with token ids, its session, user and time. Sessions begin ten minutes apart, and their
requests follow in order, so a split by time divides no session.
"""

import gzip
import json
import math
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from outrider.common.errors import OutriderError
from outrider.common.files import publish
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.server import Server
from tools.smollm2 import START, answer_with_tokens
from tools.workloads.sessions import Session
from tools.workloads.workloads import Workload

CONCURRENCY = 64
PART_RESPONSES = 100
AHEAD = 2
"""Parts in progress, so that the last sessions of one do not leave the server idle."""
SESSION_INTERVAL_S = 600
TURN_INTERVAL_S = 60

Row = dict[str, Any]
Dtype = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class PlannedSession:
    """A session with its name and the time of its first request."""

    name: str
    time: int
    session: Session


@dataclass(frozen=True)
class Part:
    """Consecutive sessions that are recorded into one file."""

    path: Path
    sessions: list[PlannedSession]

    def is_recorded(self) -> bool:
        """Whether the file has all of the part's sessions."""
        if not self.path.is_file():
            return False
        lines = gzip.decompress(self.path.read_bytes()).splitlines()
        recorded = [json.loads(line)["session_id"] for line in lines]
        expected = [planned.name for planned in self.sessions for _ in planned.session.turns]
        if recorded != expected:
            raise OutriderError(
                f"{self.path}: {len(recorded)} responses of other sessions than the {len(expected)}"
                " planned ones; remove the file, or record into another folder"
            )
        return True


def parts_of(
    name: str, sessions: list[Session], out_dir: Path, part_responses: int = PART_RESPONSES
) -> list[Part]:
    """Divides the sessions into parts of at least `part_responses`, but for the last."""
    parts: list[Part] = []
    responses = part_responses
    for index, session in enumerate(sessions):
        if responses >= part_responses:
            parts.append(Part(out_dir / name / f"part-{len(parts):03d}.jsonl.gz", []))
            responses = 0
        planned = PlannedSession(f"{name}-{index:04d}", START + SESSION_INTERVAL_S * index, session)
        parts[-1].sessions.append(planned)
        responses += len(session.turns)
    return parts


def record(
    workload: Workload, parts: list[Part], server: Server, deadline: float = math.inf
) -> bool:
    """Records the parts that are missing; False if `deadline` left some out.

    `deadline` is a time of `time.monotonic`. No part begins after it.
    """
    missing = [part for part in parts if not part.is_recorded()]
    begun = 0
    running: deque[tuple[Part, list[Future[list[Row]]]]] = deque()
    pool = ThreadPoolExecutor(CONCURRENCY)
    try:
        for part in missing:
            if time.monotonic() >= deadline:
                break
            begun += 1
            answers = [
                pool.submit(answer_session, planned, workload, server) for planned in part.sessions
            ]
            running.append((part, answers))
            if len(running) == AHEAD:
                publish_part(*running.popleft())
        for part, answers in running:
            publish_part(part, answers)
    finally:
        # After an error or Ctrl-C, only the sessions in progress are waited for.
        pool.shutdown(cancel_futures=True)
    return begun == len(missing)


def publish_part(part: Part, answers: list[Future[list[Row]]]) -> None:
    """Writes a part's file once all of its sessions are answered."""
    rows = [row for answer in answers for row in answer.result()]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    with publish(part.path) as temporary:
        # Without a time, equal rows give equal files.
        temporary.write_bytes(gzip.compress(lines.encode(), 9, mtime=0))
    tokens = sum(row["response"]["usage"]["completion_tokens"] for row in rows)
    print(f"{part.path}: {len(rows)} responses, {tokens} tokens", flush=True)


def answer_session(planned: PlannedSession, workload: Workload, server: Server) -> list[Row]:
    """Sends a session's requests one after the other; returns the rows of the log."""
    rows = []
    history: list[dict[str, str]] = []
    for number, turn in enumerate(planned.session.turns):
        messages = [*history, *(asdict(message) for message in turn.messages)]
        request = {"model": server.model_name, "messages": messages, **workload.sampling}
        if turn.response_format is not None:
            request["response_format"] = turn.response_format
        row = {
            "timestamp": planned.time + TURN_INTERVAL_S * number,
            "session_id": planned.name,
            "user_id": planned.session.user,
            "request": request,
        }
        answered = answer_with_tokens(row, server)
        rows.append(answered)
        if workload.keeps_history:
            content = answered["response"]["choices"][0]["message"]["content"]
            history = [*messages, {"role": "assistant", "content": content}]
    return rows


def recording_server(target: Path, dtype: Dtype, log: Path) -> Server:
    """A server for `CONCURRENCY` requests, not started yet."""
    engine = EngineConfig(
        mode="compiled",
        dtype=dtype,
        max_model_len=2048,
        max_num_seqs=CONCURRENCY,
        kv_cache_gb=4.0,
    )
    return Server(TargetConfig(model=str(target)), engine, log_path=log)
