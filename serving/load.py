"""Load on a server by vLLM's own generator (`vllm bench serve`), block after block from one child process.

Importing that generator takes seconds, more than a short block lasts, and its garbage-collection and event loop should
not share a process with anything else; so a child imports it once and then runs one block a line of its input.

    with LoadGenerator(TargetConfig(), log_path=Path("load.log")) as load:
        block = load.run_block(server.url, prompts, concurrency=4, sampling=Sampling(), max_tokens=256)
        print(block.tokens_per_s)
"""

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from outrider.serving.client import Sampling
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.counters import SpeculationCounters, read_counters
from outrider.serving.engine import engine_environment
from outrider.serving.processes import Family
from outrider.speculators.errors import OutriderError


@dataclass(frozen=True)
class RequestResult:
    """One request of a block, in the prompts' order."""

    output_tokens: int
    ttft_ms: float
    """Time to first token."""
    itl_ms: tuple[float, ...]
    """Times between two deliveries; under speculation one delivery may bring several tokens."""

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first; None when there is no second."""
        return sum(self.itl_ms) / (self.output_tokens - 1) if self.output_tokens > 1 else None


@dataclass(frozen=True)
class BlockResult:
    """What one block of requests showed."""

    concurrency: int
    completed: int
    output_tokens: int
    seconds: float
    """From the first request's start to the last token."""
    tokens_per_s: float
    """Output tokens a second, all requests together."""
    ttft_ms_p50: float
    ttft_ms_p99: float
    itl_ms_p50: float
    itl_ms_p99: float
    tpot_ms_p50: float
    tpot_ms_p99: float
    requests: tuple[RequestResult, ...]
    counters: SpeculationCounters
    """The engine's counts of this block alone."""


class LoadGenerator:
    """The child process that makes the load, as a context."""

    def __init__(self, target: TargetConfig, log_path: Path, model_name: str | None = None) -> None:
        """`model_name`: under which the server knows the target; the last part of its name if not given."""
        self._tokenizer = target.directory()
        self._model_name = model_name or Path(target.model).name
        self._log_path = Path(log_path)

    def __enter__(self) -> "LoadGenerator":
        self._stack = contextlib.ExitStack()
        family = self._stack.enter_context(Family())
        self._folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="outrider-")))
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log_path.touch(mode=0o600)
        log = self._stack.enter_context(self._log_path.open("ab"))
        environment = engine_environment(EngineConfig()) | family.environment | {"OMP_NUM_THREADS": "1"}
        self._child = subprocess.Popen(
            [sys.executable, "-m", "outrider.serving.load"],
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        self._stack.close()
        self._child.wait()
        self._child.stdout.close()

    def run_block(
        self,
        url: str,
        prompts: Sequence[str],
        concurrency: int,
        sampling: Sampling,
        max_tokens: int,
    ) -> BlockResult:
        """Sends `prompts` (rendered text, special tokens as text) to the server at `url`, `concurrency` at a time.

        With a seed every request of the block draws with that same seed: vLLM's generator sends one body for all.
        """
        dataset = self._folder / "prompts.jsonl"
        dataset.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")
        body: dict[str, Any] = {"add_special_tokens": False}
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
            "max-concurrency": concurrency,
            "temperature": sampling.temperature,
            "top-p": sampling.top_p,
            "extra-body": json.dumps(body),
            "ready-check-timeout-sec": 0,  # the check would send a request of its own, and be counted
        }
        words = ["--skip-chat-template", "--disable-shuffle", "--no-oversample", "--disable-tqdm", "--save-detailed"]
        words += [word for name, value in options.items() for word in (f"--{name}", str(value))]
        before = read_counters(url)
        result = self._ask(words)
        return _block(result, concurrency, len(prompts), read_counters(url) - before)

    def _ask(self, words: list[str]) -> dict[str, Any]:
        try:
            print(json.dumps(words), file=self._child.stdin, flush=True)
            line = self._child.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            end = "\n".join(self._log_path.read_text(errors="replace").splitlines()[-25:])
            raise OutriderError(
                f"the load generator ended with code {self._child.wait()}; {self._log_path} ends:\n{end}"
            )
        return json.loads(line)


def _block(result: dict[str, Any], concurrency: int, prompts: int, counters: SpeculationCounters) -> BlockResult:
    import numpy as np

    if result["completed"] != prompts:
        errors = [error for error in result["errors"] if error]
        raise OutriderError(f"{prompts - result['completed']} of {prompts} requests failed; the first: {errors[:1]}")
    requests = tuple(
        RequestResult(tokens, 1000 * ttft, tuple(1000 * itl for itl in itls))
        for tokens, ttft, itls in zip(result["output_lens"], result["ttfts"], result["itls"], strict=True)
    )

    def percentiles(values: list[float]) -> tuple[float, float]:
        p50, p99 = np.percentile(values, (50, 99)) if values else (0.0, 0.0)
        return float(p50), float(p99)

    return BlockResult(
        concurrency,
        result["completed"],
        result["total_output_tokens"],
        result["duration"],
        result["total_output_tokens"] / result["duration"],
        *percentiles([request.ttft_ms for request in requests]),
        *percentiles([itl for request in requests for itl in request.itl_ms]),
        *percentiles([request.tpot_ms for request in requests if request.tpot_ms is not None]),
        requests,
        counters,
    )


def _child() -> None:
    """Runs blocks: a JSON list of `vllm bench serve` options a line in, its JSON result a line out."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the generator prints its tables to stdout: those belong in the log
    from vllm.benchmarks import serve

    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    for line in sys.stdin:
        result = asyncio.run(serve.main_async(parser.parse_args(json.loads(line))))
        kept = ("completed", "total_output_tokens", "duration", "output_lens", "ttfts", "itls", "errors")
        print(json.dumps({name: result[name] for name in kept}), file=answers, flush=True)


if __name__ == "__main__":
    _child()
