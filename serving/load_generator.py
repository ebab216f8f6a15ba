"""Runs blocks of requests with `vllm bench serve` in one child process.

Importing vLLM's load generator takes seconds, and its garbage collection and event loop should have
a process to themselves. So a child process imports it once and reads one block per line.

    with LoadGenerator(TargetConfig(), log_path=Path("load.log")) as load:
        block = load.run_block(server.url, prompts, 4, Sampling(), max_tokens=256)
        print(block.output_tokens / block.seconds)
        arrivals = [0.0, 0.3, 1.1, 1.2]
        timed = load.run_block(
            server.url, prompts, None, Sampling(), max_tokens=256, arrivals=arrivals
        )
"""

import argparse
import asyncio
import contextlib
import functools
import gc
import itertools
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.files import SCRATCH
from outrider.common.process_tree import Child
from outrider.serving.client import Sampling, SpeculationCounters, read_counters
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.vllm_arguments import engine_environment, words_of

WARM_UP_TOKENS = 32
"""Maximum response length of a warm-up block, in tokens."""


@dataclass(frozen=True)
class RequestResult:
    """Timing of one request."""

    output_tokens: int
    ttft_ms: float
    """Time to first token."""
    itl_ms: tuple[float, ...]
    """Times between deliveries; with speculation, a delivery may contain several tokens."""
    start_s: float = 0.0
    """Send time, in seconds after the block's first request."""

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first; None without a second token."""
        return sum(self.itl_ms) / (self.output_tokens - 1) if self.output_tokens > 1 else None

    @property
    def latency_s(self) -> float:
        """Time from sending to the last token."""
        return (self.ttft_ms + sum(self.itl_ms)) / 1000


@dataclass(frozen=True)
class BlockResult:
    """Results of one block of requests."""

    seconds: float
    """From the first request's start to the last token."""
    requests: tuple[RequestResult, ...]
    counters: SpeculationCounters
    """The engine's counts during this block."""

    @property
    def output_tokens(self) -> int:
        """Output tokens of all requests."""
        return sum(request.output_tokens for request in self.requests)

    @property
    def full_until_s(self) -> float:
        """When the first request ends that no other one follows: the batch shrinks from then on."""
        last = max(request.start_s for request in self.requests)
        ends = (request.start_s + request.latency_s for request in self.requests)
        return min((end for end in ends if end > last), default=last)

    def steady(self, concurrency: int) -> tuple[list[float], float]:
        """What a closed loop delivered while all `concurrency` requests were in flight.

        Returns each request's share of tokens, and the seconds they took. Speculation gains more
        when the batch has shrunk (`full_until_s`). The time to first token of a request is counted
        in proportion to its share.
        """
        full = self.full_until_s
        shares = []
        busy_ms = 0.0
        for request in self.requests:
            left_ms = 1000 * (full - request.start_s) - request.ttft_ms + 1e-3  # rounding
            count = sum(passed <= left_ms for passed in itertools.accumulate(request.itl_ms))
            share = count / len(request.itl_ms) if request.itl_ms else float(left_ms >= 0)
            shares.append(share)
            busy_ms += share * request.ttft_ms + sum(request.itl_ms[:count])
        return shares, busy_ms / 1000 / concurrency


class LoadGenerator:
    """The child process that sends requests; a context manager."""

    def __init__(
        self,
        target: TargetConfig,
        log_path: Path,
        model_name: str | None = None,
        fields: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        """`model_name` is the target's name on the server; default: `target.model`'s basename.

        `fields` has further fields of the requests of rendered prompts, as `complete`.
        """
        self._fields = fields or {}
        self._tokenizer = target.directory()
        self._model_name = model_name or Path(target.model).name
        self._log_path = Path(log_path)

    def __enter__(self) -> "LoadGenerator":
        self._child = Child(
            [sys.executable, "-m", "outrider.serving.load_generator"],
            self._log_path,
            "the load generator",
            os.environ | engine_environment(EngineConfig()) | {"OMP_NUM_THREADS": "1"},
            pipes=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._child.stop()

    def run_block(
        self,
        url: str,
        prompts: Sequence[str],
        concurrency: int | None,
        sampling: Sampling,
        *,
        max_tokens: int,
        arrivals: Sequence[float] | None = None,
    ) -> BlockResult:
        """Sends one block of requests to a server, in a closed or open loop.

        Without `arrivals`, a closed loop keeps `concurrency` requests in flight. With `arrivals`,
        an open loop sends each prompt at its arrival time (in seconds after the block's start, in
        ascending order). If `concurrency` is None, requests beyond the server's capacity wait in
        its queue, and the wait counts toward the time to first token. Prompts are rendered text,
        including special tokens.
        """
        options: dict[str, Any] = {
            "backend": "vllm",
            "base_url": url,
            "endpoint": "/v1/completions",
            "model": self._model_name,
            "tokenizer": self._tokenizer,
            "dataset_name": "custom",
            "custom_output_len": max_tokens,
            "num_prompts": len(prompts),
            "max_concurrency": concurrency,
            "temperature": sampling.temperature,
            "extra_body": {"add_special_tokens": False, **sampling.request()},
            "ready_check_timeout_sec": 0,  # the check would send a request, which would be counted
            "skip_chat_template": True,
            "disable_shuffle": True,
            "no_oversample": True,
            "disable_tqdm": True,
            "save_detailed": True,
        }
        before = read_counters(url)
        with self._dataset(prompts) as dataset:
            words = words_of(options | {"dataset_path": dataset})
            fields = [self._fields.get(prompt, {}) for prompt in prompts]
            result = self._ask({"words": words, "arrivals": arrivals, "fields": fields})
        return _block(result, read_counters(url) - before)

    @contextlib.contextmanager
    def _dataset(self, prompts: Sequence[str]) -> Iterator[Path]:
        """Yields a link to a file of the prompts in this process's memory.

        After a kill, no prompt is on the disk. vLLM only reads a path with the suffix.
        """
        lines = [json.dumps({"prompt": prompt}) + "\n" for prompt in prompts]
        with (
            # In a run, the next command removes a link that a kill leaves.
            tempfile.TemporaryDirectory(dir=self._log_path.parent, prefix=SCRATCH) as folder,
            os.fdopen(os.memfd_create("prompts"), "w", encoding="utf-8") as file,
        ):
            file.writelines(lines)
            file.flush()
            link = Path(folder) / "prompts.jsonl"
            link.symlink_to(f"/proc/{os.getpid()}/fd/{file.fileno()}")
            yield link

    def _ask(self, block: dict[str, Any]) -> dict[str, Any]:
        stdin = self._child.process.stdin
        stdout = self._child.process.stdout
        assert stdin is not None and stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(block), file=stdin, flush=True)
            line = stdout.readline()
        if not line:
            raise self._child.failure(f"ended with code {self._child.process.wait()}")
        return dict(json.loads(line))


def _block(result: dict[str, Any], counters: SpeculationCounters) -> BlockResult:
    prompts = len(result["errors"])
    if result["completed"] != prompts:
        errors = [error for error in result["errors"] if error]
        raise OutriderError(
            f"{prompts - result['completed']} of {prompts} requests failed, first with:"
            f" {errors[:1]}"
        )
    begin = min(result["start_times"])
    columns = (result[name] for name in ("output_lens", "ttfts", "itls", "start_times"))
    requests = tuple(
        RequestResult(tokens, 1000 * ttft, tuple(1000 * itl for itl in itls), start - begin)
        for tokens, ttft, itls, start in zip(*columns, strict=True)
    )
    return BlockResult(result["duration"], requests, counters)


def _as_logged(
    serve: ModuleType, fields: list[dict[str, Any]], arrivals: list[float] | None
) -> Callable[..., list[Any]]:
    """Returns a `get_samples` that gives each request its fields and its send time, if any.

    vLLM 0.32 supports send times only for its timed traces, which contain only token counts: vLLM
    fills the prompts with random tokens and ignores end-of-sequence tokens, so acceptance would
    differ from that on real text. But vLLM's schedule uses the `timestamp` of any request, so the
    send times are set here, after vLLM has checked the options.
    """
    load = serve.get_samples

    def samples(arguments: argparse.Namespace, tokenizer: Any) -> list[Any]:
        requests = load(arguments, tokenizer)
        for request, overrides in zip(requests, fields, strict=True):
            request.request_overrides = overrides
        if arrivals is None:
            return requests
        for request, arrival in zip(requests, arrivals, strict=True):
            request.timestamp = arrival
        # vllm/benchmarks/serve.py, line 501, then sends each request at its timestamp.
        arguments.self_timed = True
        return requests

    return samples


_FROM_RESULT = ("completed", "duration", "output_lens", "ttfts", "itls", "start_times", "errors")
"""Entries of vLLM's result that a block is made from."""


def _child() -> None:
    """Reads blocks from stdin and writes results to stdout as JSON lines.

    A block has `words` (the options of `vllm bench serve`), `fields` (of each prompt's request) and
    `arrivals` (seconds, or null).
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the generator prints tables to stdout; they belong in the log
    from vllm.benchmarks import serve
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    plain = serve.get_samples
    # vLLM loads it for every block, in 1.4 s with 132,000 tokens on a busy machine.
    serve.get_tokenizer = functools.cache(serve.get_tokenizer)
    serve.add_cli_args(parser)
    for line in sys.stdin:
        block = json.loads(line)
        serve.get_samples = plain
        serve.get_samples = _as_logged(serve, block["fields"], block["arrivals"])
        result = asyncio.run(serve.main_async(parser.parse_args(block["words"])))
        # vLLM freezes the heap before it sends (vllm/benchmarks/serve.py, line 2218), because its
        # process ends afterwards. What a block has made would stay in this one: 48 MB with its
        # tokenizer of 132,000 tokens. The next block collects before it freezes.
        gc.unfreeze()
        answer = {name: result[name] for name in _FROM_RESULT}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _child()
