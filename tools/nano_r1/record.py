"""Records nano R1's traffic: four workloads, served by vLLM and logged.

    python -m tools.nano_r1.record CORPUS_DIR [WORKLOAD...]

Each line is `{"timestamp", "session_id", "tenant", "route", "request", "response"}`. Requests use
the chat API with R1's reasoning parser, at temperature 0.6 and top_p 0.95. Some requests ask for
token ids; the others log only text, as is common. They are sent as fast as the server accepts them.
The logged times are arrivals from a real trace (AzureLLMInferenceTrace_conv), stretched over two
weeks, with several sessions open at a time. An interrupted recording resumes.
"""

import argparse
import csv
import dataclasses
import datetime
import gzip
import itertools
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from outrider.common.files import publish
from outrider.pipeline.recipe.shipped import SHIPPED
from outrider.serving.client import post
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.server import Server
from tools.nano_r1.conversations import Conversation, Part, Work
from tools.nano_r1.texts import WORKS, mixture

SAMPLING = {"temperature": 0.6, "top_p": 0.95, "max_tokens": 640}
WITH_TOKEN_IDS = 0.6
"""Share of requests whose token ids are logged."""
START = datetime.datetime(2026, 3, 2, 8, tzinfo=datetime.UTC).timestamp()
SPAN_S = 14 * 24 * 3600.0
OPEN_SESSIONS = 4
CONCURRENCY = 32


@dataclasses.dataclass(frozen=True)
class Workload:
    """A recorded endpoint; `work` is its task, or None for the mixture."""

    exchanges: int
    tenant: str
    work: Work | None
    session_length: int
    part: Part = "traffic"
    seed: int = 7
    with_token_ids: float = WITH_TOKEN_IDS


WORKLOADS = {
    "resume_screening": Workload(1500, "harrow-talent", "resumes", 6),
    "document_extraction": Workload(600, "tallybook", "receipts", 4),
    "social_chat": Workload(600, "corner-and-co", "support", 3),
    "general": Workload(600, "shared-endpoint", None, 3),
}


def record(name: str, workload: Workload, corpus_dir: Path, server: Server, out_dir: Path) -> None:
    """Writes `out_dir/NAME.jsonl.gz`; resumes from `out_dir/.NAME.partial.jsonl`."""
    partial = out_dir / f".{name}.partial.jsonl"
    done = len(partial.read_bytes().splitlines()) if partial.exists() else 0
    plan = itertools.islice(planned_rows(name, workload, corpus_dir), done, workload.exchanges)
    with partial.open("ab") as log, ThreadPoolExecutor(CONCURRENCY) as pool:
        for chunk in _chunks(plan, CONCURRENCY * 4):
            for row in pool.map(lambda row: answer(row, server), chunk):
                log.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            done += len(chunk)
            print(f"{name}: {done} of {workload.exchanges}", flush=True)
    with publish(out_dir / f"{name}.jsonl.gz") as temporary:
        temporary.write_bytes(gzip.compress(partial.read_bytes(), 9, mtime=0))
    partial.unlink()


def planned_rows(name: str, workload: Workload, corpus_dir: Path) -> Iterator[dict[str, Any]]:
    """Log rows without responses: tenant, session, time and request."""
    rng = random.Random(f"traffic {name}")
    sessions = itertools.count(1)
    open_sessions: list[list[int]] = []
    for conversation, time in zip(
        prompts(workload, corpus_dir), arrivals(corpus_dir, workload.exchanges), strict=False
    ):
        while len(open_sessions) < OPEN_SESSIONS:
            open_sessions.append([next(sessions), rng.randint(1, 2 * workload.session_length - 1)])
        session = rng.choice(open_sessions)
        session[1] -= 1
        if session[1] == 0:
            open_sessions.remove(session)
        request = {"model": "nano_r1", "messages": conversation.messages, **SAMPLING}
        if rng.random() < workload.with_token_ids:
            request["return_token_ids"] = True
        yield {
            "timestamp": round(time, 3),
            "session_id": f"{workload.tenant}-{session[0]:05d}",
            "tenant": workload.tenant,
            "route": conversation.route,
            "request": request,
        }


def prompts(workload: Workload, corpus_dir: Path) -> Iterator[Conversation]:
    """The workload's conversations; by default they are outside the training part."""
    if workload.work is None:
        return mixture(corpus_dir, workload.seed, workload.part)
    return WORKS[workload.work](corpus_dir, workload.seed, None, workload.part)


def arrivals(corpus_dir: Path, count: int) -> list[float]:
    """Unix times of `count` requests: the trace, thinned and stretched to `SPAN_S`."""
    with gzip.open(corpus_dir / "AzureLLMInferenceTrace_conv.csv.gz", "rt") as file:
        # The trace has seven decimals of a second; datetime reads six.
        trace = [
            datetime.datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp()
            for row in csv.DictReader(file)
        ]
    chosen = [trace[index * len(trace) // count] for index in range(count)]
    stretch = SPAN_S / (chosen[-1] - chosen[0])
    return [START + (time - chosen[0]) * stretch for time in chosen]


def answer(row: dict[str, Any], server: Server) -> dict[str, Any]:
    """Adds the server's response to the row, with the row's time."""
    response = post(server.url, "/v1/chat/completions", row["request"])
    return {**row, "response": {**response, "created": int(row["timestamp"])}}


def recording_server(log: Path, cores: str = "auto") -> Server:
    """A server of nano R1 for `CONCURRENCY` concurrent requests, not started yet."""
    engine = EngineConfig(
        mode="compiled", max_num_seqs=CONCURRENCY, environment={"VLLM_CPU_OMP_THREADS_BIND": cores}
    )
    # Splits chats into reasoning and content; a recipe has no key for it.
    engine.extra_arguments["reasoning_parser"] = "deepseek_r1"
    return Server(TargetConfig(), engine, log_path=log)


def _chunks(rows: Iterator[dict[str, Any]], size: int) -> Iterator[list[dict[str, Any]]]:
    while chunk := list(itertools.islice(rows, size)):
        yield chunk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("workloads", nargs="*", choices=[*WORKLOADS, []], default=[])
    parser.add_argument("--out", type=Path, default=SHIPPED / "nano_r1" / "traffic")
    parser.add_argument(
        "--cores", default="auto", help="cores of the server; one process per core is fastest"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    log = args.out / f".server_{args.cores}.log"
    with recording_server(log, args.cores) as server:
        for name in args.workloads or WORKLOADS:
            record(name, WORKLOADS[name], corpus_dir=args.corpus, server=server, out_dir=args.out)
    log.unlink()


if __name__ == "__main__":
    main()
