"""Ingest of a large log: peak memory, rows/s, and tokens/s against the bare tokenizer.

    python benchmarks/traffic.py --megabytes 5000 [--format openai_pairs] [--keep DIR]

The log is generated from the embedded traffic: conversations of four turns, about 770 tokens each
(R1's are longer), all different, as text, so that everything goes through template and tokenizer.
The bare tokenizer is transformers' `tokenizer(texts)` with its own threads on every core. It is
timed before and after the ingest, because a shared machine's speed drifts, on texts in memory.
"""

import argparse
import gzip
import itertools
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from outrider.recipes import nano_r1

TURNS = 4
"""Questions per conversation; all answers but the last are context."""

TRAFFIC = Path(nano_r1.__file__).parent / "traffic"
SAMPLE_TEXTS = 2000
"""Texts for timing the bare tokenizer: about a million tokens."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--target", type=Path, default=Path("recipes/nano_r1/target"))
    parser.add_argument("--format", choices=WRITERS, default="openai_pairs")
    parser.add_argument("--keep", type=Path, help="keep the log and the table in this folder")
    args = parser.parse_args()
    folder = args.keep or Path(tempfile.mkdtemp(prefix="outrider-traffic-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        log, out = folder / f"{args.format}-{args.megabytes}", folder / "out"
        if not log.exists():
            WRITERS[args.format](log, args.megabytes * 10**6)
        before = bare_tokenizer(args.target)
        measured = ingest(args.target, log, out)
        after = bare_tokenizer(args.target)
        table, result = report(measured, [*before, *after], log)
        print(table, file=sys.stderr)
        print(json.dumps({"format": args.format, **result}))
    finally:
        if args.keep is None:
            shutil.rmtree(folder)


def read_log(path: Path) -> list[dict[str, Any]]:
    """The rows of a compressed log."""
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def exchanges() -> Iterator[tuple[dict[str, Any], dict[str, Any], float]]:
    """An endless stream of different requests and responses with their times."""
    rng = random.Random(0)
    logs = [read_log(path) for path in sorted(TRAFFIC.glob("*.gz"))]
    for number in itertools.count(1):
        log = rng.choice(logs)
        earlier, last = rng.choices(log, k=TURNS - 1), rng.choice(log)
        messages = [*last["request"]["messages"]]
        for row in earlier:
            answer = row["response"]["choices"][0]["message"]["content"]
            messages[-1:-1] = [
                row["request"]["messages"][-1],
                {"role": "assistant", "content": answer},
            ]
        shift = rng.randrange(1, 9)
        text = json.dumps(messages, ensure_ascii=False)
        text = re.sub(
            r"(?<=\\n- )(\w+): (\d+)",
            lambda found, n=shift: f"{found[1]}: {int(found[2]) + n}",
            text,
        )
        messages = json.loads(text)
        messages[-1]["content"] += f"\nreference: {rng.getrandbits(40):x}"
        response = json.loads(json.dumps(last["response"])) | {"id": f"chatcmpl-{number:012d}"}
        for holder in (response, *response["choices"]):
            holder.pop("prompt_token_ids", None)
            holder.pop("token_ids", None)
        yield last["request"] | {"messages": messages}, response, 1.75e9 + number


def write_pairs(folder: Path, size: int) -> None:
    """Requests with their responses, one pair per line."""
    folder.mkdir()
    with (folder / "log.jsonl").open("w", encoding="utf-8") as file:
        for request, response, moment in exchanges():
            file.write(
                json.dumps(
                    {"timestamp": moment, "request": request, "response": response},
                    ensure_ascii=False,
                )
                + "\n"
            )
            if file.tell() > size:
                return


def write_joined(folder: Path, size: int) -> None:
    """Requests and responses in two files, to be joined."""
    folder.mkdir()
    with (
        (folder / "requests.jsonl").open("w", encoding="utf-8") as requests,
        (folder / "responses.jsonl").open("w", encoding="utf-8") as responses,
    ):
        for request, response, moment in exchanges():
            asked = {"id": response["id"], "timestamp": moment, **request}
            requests.write(json.dumps(asked, ensure_ascii=False) + "\n")
            responses.write(json.dumps(response, ensure_ascii=False) + "\n")
            if requests.tell() + responses.tell() > size:
                return


WRITERS = {"openai_pairs": write_pairs, "openai_joined": write_joined}


def ingest(target: Path, log: Path, out: Path) -> dict[str, Any]:
    """Summary, seconds, CPU seconds and peak memory of the ingest in a separate process."""
    shutil.rmtree(out, ignore_errors=True)
    command = [sys.executable, "-m", "outrider.data.ingest.ingest", str(target), str(log), str(out)]
    begin = time.monotonic()
    before = os.times()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        peak: dict[str, float] = {"rss": 0, "processes": 0}
        watcher = threading.Thread(target=watch, args=(process.pid, peak), daemon=True)
        watcher.start()
        output, _ = process.communicate()
    if process.returncode:
        raise SystemExit(f"the ingest ended with status {process.returncode}")
    after = os.times()
    cpu = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return {
        "summary": json.loads(output),
        "seconds": time.monotonic() - begin,
        "cpu_seconds": cpu,
        **peak,
    }


def watch(pid: int, peak: dict[str, float]) -> None:
    """Records the peak resident memory of a process tree, in MB."""
    while psutil.pid_exists(pid):
        try:
            family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
            peak["rss"] = max(
                peak["rss"], sum(process.memory_info().rss for process in family) / 1e6
            )
            peak["processes"] = max(peak["processes"], len(family))
        except psutil.NoSuchProcess:
            continue
        time.sleep(0.1)


def bare_tokenizer(target: Path) -> list[tuple[float, float]]:
    """(tokens/s, CPU seconds per token) of the tokenizer, three times, in a separate process."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "import traffic; traffic.time_tokenizer(sys.argv[2])"
    )
    environment = {
        **os.environ,
        "TOKENIZERS_PARALLELISM": "true",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(target)]
    output = subprocess.run(
        command, env=environment, check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    return [tuple(map(float, line.split())) for line in output.splitlines()]


def time_tokenizer(target: str) -> None:
    """Prints the rates for `bare_tokenizer`."""
    from outrider.data.exchange import Place
    from outrider.data.formats.openai import exchanges as read
    from outrider.data.tokenize.emitted_text import opening_of, readings
    from outrider.data.tokenize.tokens import SequenceBuilder

    builder = SequenceBuilder(Path(target))
    texts: list[str] = []
    for request, response, _ in exchanges():
        (exchange,) = read(request, response, Place("", 1))
        prompt = builder.render(exchange)
        texts += [prompt, readings(exchange, opening_of(exchange, prompt))[0][0]]
        if len(texts) == SAMPLE_TEXTS:
            break
    for _ in range(3):
        begin, cpu = time.monotonic(), time.process_time()
        tokens = 0
        for start in range(0, len(texts), 1000):
            encoded = builder.tokenizer(texts[start : start + 1000], add_special_tokens=False)[
                "input_ids"
            ]
            tokens += sum(map(len, encoded))
        print(tokens / (time.monotonic() - begin), (time.process_time() - cpu) / tokens, flush=True)


def report(
    measured: dict[str, Any], bare: list[tuple[float, float]], log: Path
) -> tuple[str, dict[str, Any]]:
    """The result as text and as a dict."""
    summary, seconds = measured["summary"], measured["seconds"]
    tokens = summary["prompt_tokens"] + summary["completion_tokens"]
    size = sum(path.stat().st_size for path in log.iterdir()) / 1e6
    bare_rate, bare_cpu = (statistics.median(values) for values in zip(*bare, strict=True))
    result = {
        "megabytes": round(size),
        "rows": summary["rows"],
        "rejects": summary["rejects"],
        "tokens": tokens,
        "tokens_per_row": round(tokens / summary["exchanges"]),
        "seconds": round(seconds, 1),
        "processes": measured["processes"],
        "peak_rss_mb": round(measured["rss"]),
        "rows_per_s": round(summary["rows"] / seconds),
        "megabytes_per_s": round(size / seconds, 2),
        "tokens_per_s": round(tokens / seconds),
        "bare_tokens_per_s": round(bare_rate),
        "of_bare": round(tokens / seconds / bare_rate, 3),
        "cpu_us_per_token": round(measured["cpu_seconds"] / tokens * 1e6, 3),
        "bare_cpu_us_per_token": round(bare_cpu * 1e6, 3),
        "of_bare_by_cpu": round(bare_cpu * tokens / measured["cpu_seconds"], 3),
    }
    return "\n".join(f"{key:>22}  {value}" for key, value in result.items()), result


if __name__ == "__main__":
    main()
