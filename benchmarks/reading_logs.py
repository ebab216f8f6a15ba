"""Cost of reading a log: many small objects, the memory of a large log, bodies as JSON text.

    python -m benchmarks.reading_logs objects --count 10000 --latency 0.03
    python -m benchmarks.reading_logs memory --megabytes 60 600
    python -m benchmarks.reading_logs parse --rows 300 --rounds 15

`objects` ingests objects of one exchange each, as LiteLLM writes to S3, from a store in this
process that waits before each request and counts requests and opens. `memory` ingests logs of two
sizes, each in processes of its own, and sums the memory of all of them (PSS, so that shared pages
count once) five times a second. `parse` times rows of 5.8 kB in one process, with each JSON text
decoded once and, in turn, each time that it is read. The last line of stdout is JSON. Results:
results/data.md.
"""

import argparse
import functools
import json
import multiprocessing
import os
import random
import resource
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from outrider.data.config import TrafficConfig
from outrider.data.exchange import Place, Record
from outrider.data.formats.readers import openai_pairs
from outrider.data.formats.rows import embedded
from outrider.data.ingest.ingest import ingest

TARGET = Path(__file__).parents[1] / "recipes" / "nano_r1" / "target"

WORDS = ["the", "library", "opens", "at", "ten", "on", "Saturday", "please", "compare", "tables"]


class SlowStore(AbstractFileSystem):
    """A store of objects in memory that waits before each request, and counts requests."""

    protocol = "slow"
    cachable = False
    objects: ClassVar[dict[str, bytes]] = {}
    latency = 0.0
    counts: ClassVar[Counter[str]] = Counter()
    at_once = 0
    _lock = threading.Lock()

    def request(self, kind: str) -> None:
        """Counts a request and waits as long as one takes."""
        store = type(self)
        with store._lock:
            store.counts[kind] += 1
            store.counts["now"] += 1
            store.at_once = max(store.at_once, store.counts["now"])
        time.sleep(store.latency)
        with store._lock:
            store.counts["now"] -= 1

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path).rstrip("/")
        if path in self.objects:
            self.request("info")
            infos = [self._info(path)]
        else:
            names = [name for name in self.objects if name.startswith(f"{path}/")]
            for _ in range(0, len(names), 1000):  # S3 lists 1,000 objects in a request
                self.request("list")
            infos = [self._info(name) for name in names]
        return infos if detail else [info["name"] for info in infos]

    def _info(self, path: str) -> dict[str, Any]:
        return {"name": path, "size": len(self.objects[path]), "type": "file"}

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path).rstrip("/")
        if path in self.objects:
            self.request("info")
            return self._info(path)
        return {"name": path, "size": 0, "type": "directory"}

    def _open(self, path: str, mode: str = "rb", block_size: int = 2**20, **_: Any) -> Any:
        with self._lock:
            self.counts["open"] += 1
        return SlowFile(self, path, mode, block_size, size=len(self.objects[path]))


class SlowFile(AbstractBufferedFile):
    """An open object of a `SlowStore`."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        self.fs.request("get")
        return self.fs.objects[self.path][start:end]


def exchange(rng: random.Random, prompt_words: int, answer_words: int) -> dict[str, Any]:
    """Returns a row of openai_pairs with different text in each."""
    question = " ".join(rng.choices(WORDS, k=prompt_words)) + f" {rng.random()}"
    answer = " ".join(rng.choices(WORDS, k=answer_words))
    message = {"role": "assistant", "reasoning": answer, "content": answer[:200]}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    request = {"model": "r1", "messages": [{"role": "user", "content": question}]}
    created = 1_700_000_000 + rng.randrange(10**7)
    return {
        "request": {**request, "temperature": 0.6, "user": f"u{rng.randrange(5000)}"},
        "response": {"created": created, "choices": [choice]},
    }


def small_objects(count: int, latency: float) -> dict[str, Any]:
    """Ingests `count` objects; returns times, and requests per object."""
    fsspec.register_implementation("slow", SlowStore, clobber=True)
    rng = random.Random(0)
    with tempfile.TemporaryDirectory() as scratch:  # imports, and loads the tokenizer once
        SlowStore.objects["warm/0.json"] = json.dumps(exchange(rng, 30, 60)).encode()
        ingest(TARGET, TrafficConfig(path="slow://warm"), Path(scratch), workers=0)
    SlowStore.counts.clear()
    for number in range(count):
        row = json.dumps(exchange(rng, prompt_words=30, answer_words=60)).encode()
        SlowStore.objects[f"bucket/2026-07-{number % 28 + 1:02d}/{number:06d}.json"] = row
    SlowStore.latency = latency
    with tempfile.TemporaryDirectory() as scratch:
        began = time.monotonic()
        summary = ingest(TARGET, TrafficConfig(path="slow://bucket"), Path(scratch))
        seconds = time.monotonic() - began
    counts = SlowStore.counts
    return {
        "objects": count,
        "exchanges": summary["exchanges"],
        "latency_s": latency,
        "seconds": round(seconds, 1),
        "opens_per_object": counts["open"] / count,
        "gets_per_object": counts["get"] / count,
        "other_requests": counts["list"] + counts["info"],
        "most_requests_at_once": SlowStore.at_once,
        "seconds_for_100000": round(seconds * 100_000 / count, 1),
        "load": round(os.getloadavg()[0], 1),
    }


def write_rows(path: Path, megabytes: float) -> int:
    """Writes a log of about 5.6 kB a row; returns the number of rows."""
    rng = random.Random(1)
    rows = 0
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < megabytes * 1e6:
            file.write(json.dumps(exchange(rng, prompt_words=300, answer_words=650)) + "\n")
            rows += 1
    return rows


def _ingest_in(folder: str, results: Any) -> None:
    began = time.monotonic()
    summary = ingest(TARGET, TrafficConfig(path=f"{folder}/log.jsonl"), Path(folder) / "out")
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_seconds = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    results.put((time.monotonic() - began, cpu_seconds, summary["exchanges"]))


def memory_of(pid: int) -> tuple[float, float]:
    """Returns the megabytes of a process and its descendants: all, and those of no file (PSS)."""
    total = anonymous = 0.0
    for process in _tree(pid):
        try:
            text = Path(f"/proc/{process}/smaps_rollup").read_text()
        except (OSError, ProcessLookupError):
            continue  # it has just ended
        sizes = dict(line.split(":") for line in text.splitlines() if line.startswith("Pss"))
        total += float(sizes["Pss"].split()[0]) / 1e3
        anonymous += float(sizes["Pss_Anon"].split()[0]) / 1e3
    return total, anonymous


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from _tree(int(child))


def large_log(megabytes: float) -> dict[str, Any]:
    """Ingests a log in another process; returns rows/s per core and peak memory."""
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    with tempfile.TemporaryDirectory() as folder:
        rows = write_rows(Path(folder) / "log.jsonl", megabytes)
        process = spawn.Process(target=_ingest_in, args=(folder, results))
        process.start()
        peak = peak_anonymous = 0.0
        while process.is_alive():
            total, anonymous = memory_of(process.pid or 0)
            peak = max(peak, total)
            peak_anonymous = max(peak_anonymous, anonymous)
            process.join(0.2)
        seconds, cpu_seconds, exchanges = results.get()
    cores = len(os.sched_getaffinity(0))
    return {
        "megabytes": megabytes,
        "rows": rows,
        "exchanges": exchanges,
        "seconds": round(seconds, 1),
        "rows_per_s_per_core": round(rows / seconds / cores, 1),
        "rows_per_cpu_s": round(rows / cpu_seconds, 1),
        "peak_mb": round(peak),
        "peak_anonymous_mb": round(peak_anonymous),
        "load": round(os.getloadavg()[0], 1),
    }


def _as_text(row: dict[str, Any]) -> dict[str, Any]:
    return {key: json.dumps(body) for key, body in row.items()}


LAYOUTS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "objects": lambda row: row,
    "bodies as text": _as_text,
    "text of a collector, with bodies as text": lambda row: {"message": json.dumps(_as_text(row))},
    "HTTP bodies as text": lambda row: {key: {"body": json.dumps(row[key])} for key in row},
}


def parsing(rows: int, rounds: int) -> dict[str, dict[str, float]]:
    """Returns the median CPU microseconds per row, by layout and use of decoded text."""
    rng = random.Random(0)
    exchanges = [exchange(rng, prompt_words=300, answer_words=650) for _ in range(rows)]
    decoded_once = embedded.json_of
    decoders = {
        "once": decoded_once,
        "each time": functools.lru_cache(maxsize=0)(decoded_once.__wrapped__),
    }
    medians: dict[str, dict[str, float]] = {}
    for name, layout in LAYOUTS.items():
        lines = [json.dumps(layout(row)).encode() for row in exchanges]
        records = [Record(Place("log.jsonl", number), line) for number, line in enumerate(lines)]
        seconds: dict[str, list[float]] = {use: [] for use in decoders}
        for _ in range(rounds):
            for use, decoder in decoders.items():
                embedded.json_of = decoder
                began = time.process_time()
                for record in records:
                    openai_pairs.parse(record)
                seconds[use].append(time.process_time() - began)
        medians[name] = {
            use: round(statistics.median(times) / rows * 1e6, 1) for use, times in seconds.items()
        }
    embedded.json_of = decoded_once
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    modes = parser.add_subparsers(dest="mode", required=True)
    objects = modes.add_parser("objects")
    objects.add_argument("--count", type=int, default=10_000)
    objects.add_argument("--latency", type=float, default=0.03)
    memory = modes.add_parser("memory")
    memory.add_argument("--megabytes", type=float, nargs=2, default=[60.0, 600.0])
    parse = modes.add_parser("parse")
    parse.add_argument("--rows", type=int, default=300)
    parse.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    if arguments.mode == "parse":
        print(json.dumps(parsing(arguments.rows, arguments.rounds)))
        return
    if arguments.mode == "objects":
        print(json.dumps(small_objects(arguments.count, arguments.latency)))
        return
    small, large = map(large_log, arguments.megabytes)
    ratio = round(large["peak_mb"] / small["peak_mb"], 3)
    anonymous = round(large["peak_anonymous_mb"] / small["peak_anonymous_mb"], 3)
    print(json.dumps({"logs": [small, large], "ratio": ratio, "ratio_anonymous": anonymous}))


if __name__ == "__main__":
    main()
