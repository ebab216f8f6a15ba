"""Runs blocks of requests with vLLM's load generator (`vllm bench serve`) in one child process.

Importing that generator takes seconds, longer than a short block, and its garbage collection and
event loop should not share a process with anything else. So a child imports it once, then reads one
block per line of its input.

    with LoadGenerator(TargetConfig(), log_path=Path("load.log")) as load:
        block = load.run_block(server.url, prompts, 4, Sampling(), max_tokens=256)
        print(block.tokens_per_s)
        timed = load.run_timed(server.url, prompts, [0.0, 0.3, 1.1, 1.2], Sampling(), 256)
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, TracebackType
from typing import IO, Any

from outrider.common.errors import OutriderError
from outrider.common.process_tree import ProcessTree
from outrider.serving.client import Sampling
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.counters import SpeculationCounters, read_counters
from outrider.serving.engine import engine_environment

WARM_UP_TOKENS = 32
"""Longest response of a warm-up block."""


@dataclass(frozen=True)
class RequestResult:
    """Timing of one request."""

    output_tokens: int
    ttft_ms: float
    """Time to first token."""
    itl_ms: tuple[float, ...]
    """Times between deliveries; with speculation a delivery may have several tokens."""
    start_s: float = 0.0
    """Send time, in seconds after the block's first request."""

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first; None when there is no second."""
        return sum(self.itl_ms) / (self.output_tokens - 1) if self.output_tokens > 1 else None

    @property
    def latency_s(self) -> float:
        """Time from sending to the last token."""
        return (self.ttft_ms + sum(self.itl_ms)) / 1000

    @property
    def tokens_per_delivery(self) -> float | None:
        """Mean burst: tokens over deliveries, both after the first.

        A step delivers once, so this is the request's acceptance length, (tokens - 1) / steps. It
        is larger where output waits for a slow reader, because the server then merges several
        steps into one delivery. None with fewer than two deliveries.
        """
        return (self.output_tokens - 1) / len(self.itl_ms) if self.itl_ms else None


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of a latency over a block, in milliseconds; 0 where there is none."""

    p50: float
    p90: float
    p99: float


@dataclass(frozen=True)
class BlockResult:
    """Results of one block of requests."""

    concurrency: int | None
    """Requests in flight; None for the open loop."""
    completed: int
    output_tokens: int
    seconds: float
    """From the first request's start to the last token."""
    tokens_per_s: float
    """Output tokens per second, over all requests."""
    requests_per_s: float
    """Completed requests per second, over the whole block."""
    ttft_ms: Percentiles
    itl_ms: Percentiles
    tpot_ms: Percentiles
    requests: tuple[RequestResult, ...]
    counters: SpeculationCounters
    """The engine's counters during this block."""


class LoadGenerator:
    """The child process that sends requests, as a context."""

    def __init__(self, target: TargetConfig, log_path: Path, model_name: str | None = None) -> None:
        """`model_name`: the target's name at the server; by default the last part of its path."""
        self._tokenizer = target.directory()
        self._model_name = model_name or Path(target.model).name
        self._log_path = Path(log_path)

    def __enter__(self) -> "LoadGenerator":
        self._stack = contextlib.ExitStack()
        self._child: subprocess.Popen[str] | None = None
        return self

    def start(self) -> subprocess.Popen[str]:
        """The child process; it is started at the first call, or block."""
        if self._child is None:
            tree = self._stack.enter_context(ProcessTree())
            folder = tempfile.TemporaryDirectory(prefix="outrider-")
            self._folder = Path(self._stack.enter_context(folder))
            self._log_path.parent.mkdir(parents=True, exist_ok=True)
            self._log_path.touch(mode=0o600)
            log = self._stack.enter_context(self._log_path.open("ab"))
            engine = engine_environment(EngineConfig())
            self._child = subprocess.Popen(
                [sys.executable, "-m", "outrider.serving.load_generator"],
                env=os.environ | engine | tree.environment | {"OMP_NUM_THREADS": "1"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        return self._child

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._child is None:
            return
        stdin, stdout = _pipes(self._child)
        with contextlib.suppress(BrokenPipeError):
            stdin.close()
        self._stack.close()
        self._child.wait()
        stdout.close()

    def run_block(
        self,
        url: str,
        prompts: Sequence[str],
        concurrency: int,
        sampling: Sampling,
        max_tokens: int,
    ) -> BlockResult:
        """Closed loop: sends `prompts` to the server at `url`, with `concurrency` in flight.

        Prompts are rendered text, special tokens as text. A seed is the same for all requests of
        the block, because vLLM's generator sends one body for all.
        """
        return self._run(url, prompts, sampling, max_tokens, concurrency, None)

    def run_timed(
        self,
        url: str,
        prompts: Sequence[str],
        arrivals: Sequence[float],
        sampling: Sampling,
        max_tokens: int,
    ) -> BlockResult:
        """Open loop: sends each prompt at its time, in seconds after the block's start.

        `arrivals` must be non-decreasing. Requests beyond the server's capacity queue there, and
        the wait is part of the time to first token.
        """
        if len(arrivals) != len(prompts) or any(
            later < earlier for earlier, later in itertools.pairwise(arrivals)
        ):
            raise ValueError("run_timed: arrivals must be non-decreasing, one per prompt")
        return self._run(url, prompts, sampling, max_tokens, None, list(arrivals))

    def _run(
        self,
        url: str,
        prompts: Sequence[str],
        sampling: Sampling,
        max_tokens: int,
        concurrency: int | None,
        arrivals: list[float] | None,
    ) -> BlockResult:
        self.start()
        dataset = self._folder / "prompts.jsonl"
        lines = [json.dumps({"prompt": prompt}) + "\n" for prompt in prompts]
        dataset.write_text("".join(lines), encoding="utf-8")
        body: dict[str, Any] = {"add_special_tokens": False, **sampling.request()}
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        options = {
            "backend": "vllm",
            "base-url": url,
            "endpoint": "/v1/completions",
            "model": self._model_name,
            "tokenizer": self._tokenizer,
            "dataset-name": "custom",
            "dataset-path": dataset,
            "custom-output-len": max_tokens,
            "num-prompts": len(prompts),
            "temperature": sampling.temperature,
            "extra-body": json.dumps(body),
            "ready-check-timeout-sec": 0,  # the check would send a request, which would be counted
        }
        if concurrency is not None:
            options["max-concurrency"] = concurrency
        words = [
            "--skip-chat-template",
            "--disable-shuffle",
            "--no-oversample",
            "--disable-tqdm",
            "--save-detailed",
        ]
        for name, value in options.items():
            words += [f"--{name}", str(value)]
        before = read_counters(url)
        result = self._ask({"words": words, "arrivals": arrivals})
        return _block(result, concurrency, len(prompts), read_counters(url) - before)

    def _ask(self, block: dict[str, Any]) -> dict[str, Any]:
        child = self.start()
        stdin, stdout = _pipes(child)
        try:
            print(json.dumps(block), file=stdin, flush=True)
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            end = "\n".join(self._log_path.read_text(errors="replace").splitlines()[-25:])
            code = child.wait()
            raise OutriderError(
                f"the load generator ended with code {code}; {self._log_path} ends:\n{end}"
            )
        result: dict[str, Any] = json.loads(line)
        return result


def _pipes(child: subprocess.Popen[str]) -> tuple[IO[str], IO[str]]:
    assert child.stdin is not None and child.stdout is not None
    return child.stdin, child.stdout


def _block(
    result: dict[str, Any], concurrency: int | None, prompts: int, counters: SpeculationCounters
) -> BlockResult:
    import numpy as np

    if result["completed"] != prompts:
        errors = [error for error in result["errors"] if error]
        raise OutriderError(
            f"{prompts - result['completed']} of {prompts} requests failed; the first: {errors[:1]}"
        )
    begin = min(result["start_times"])
    columns = (result[name] for name in ("output_lens", "ttfts", "itls", "start_times"))
    requests = tuple(
        RequestResult(tokens, 1000 * ttft, tuple(1000 * itl for itl in itls), start - begin)
        for tokens, ttft, itls, start in zip(*columns, strict=True)
    )

    def percentiles(values: list[float]) -> Percentiles:
        return (
            Percentiles(*map(float, np.percentile(values, (50, 90, 99))))
            if values
            else Percentiles(0.0, 0.0, 0.0)
        )

    return BlockResult(
        concurrency,
        result["completed"],
        result["total_output_tokens"],
        result["duration"],
        result["total_output_tokens"] / result["duration"],
        result["completed"] / result["duration"],
        percentiles([request.ttft_ms for request in requests]),
        percentiles([itl for request in requests for itl in request.itl_ms]),
        percentiles([request.tpot_ms for request in requests if request.tpot_ms is not None]),
        requests,
        counters,
    )


def _sent_at(serve: ModuleType, arrivals: list[float]) -> Callable[..., list[Any]]:
    """Replaces the generator's `get_samples`: the same requests, each with a timestamp.

    vLLM 0.32 supports send times only for its timed traces, which contain token counts: it fills
    the prompts with random tokens and ignores the end of each response, and neither drafts like a
    customer's text. Its schedule uses any request that has a `timestamp`, so the customer's prompts
    get theirs here, after the options have been checked.
    """
    load = serve.get_samples

    def samples(arguments: argparse.Namespace, tokenizer: Any) -> list[Any]:
        requests = load(arguments, tokenizer)
        for request, arrival in zip(requests, arrivals, strict=True):
            request.timestamp = arrival
        arguments.self_timed = True
        return requests

    return samples


def _child() -> None:
    """Reads blocks from stdin and writes their results to stdout, a JSON object per line.

    A block has `words`, the options of `vllm bench serve`, and `arrivals`, seconds or null.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the generator prints tables to stdout; they belong in the log
    from vllm.benchmarks import serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser, plain = FlexibleArgumentParser(), serve.get_samples
    serve.add_cli_args(parser)
    for line in sys.stdin:
        block = json.loads(line)
        serve.get_samples = plain
        if block["arrivals"] is not None:
            serve.get_samples = _sent_at(serve, block["arrivals"])
        result = asyncio.run(serve.main_async(parser.parse_args(block["words"])))
        kept = (
            "completed",
            "total_output_tokens",
            "duration",
            "output_lens",
            "ttfts",
            "itls",
            "start_times",
            "errors",
        )
        print(json.dumps({name: result[name] for name in kept}), file=answers, flush=True)


if __name__ == "__main__":
    _child()
