"""Completions from a server as token ids, for lossless checks and for recording traffic.

sampling = Sampling(temperature=0)
completions = complete(server.url, server.model_name, [[0, 17, 4]], sampling, max_tokens=64)
"""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from outrider.common.errors import OutriderError
from outrider.serving.counters import SpeculationCounters

LEAST_TOKENS_PER_S = 10.0
"""A server whose requests together deliver fewer tokens/s than this is given up."""


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters of the target."""

    temperature: float = 0.6
    top_p: float = 0.95
    top_k: int = 0
    """0: no limit."""
    seed: int | None = None
    """Seed of the first request; the i-th has seed + i. None: unseeded. Must be None on a CPU,
    where a seeded request ends vLLM 0.32's worker ("CPU Generator does not use offset")."""

    def request(self) -> dict[str, Any]:
        """The parameters as fields of a request, those that are off too.

        The server would replace missing ones by the defaults of the target's
        generation_config.json.
        """
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": 0.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
        }


@dataclass(frozen=True)
class Completion:
    """A response, with the exact tokens that the engine read and produced."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    """Including the end-of-sequence token, if there is one."""
    text: str
    finish_reason: str
    logprobs: list[float] | None
    """Log-probability of each token before temperature and top-p; None unless requested."""
    counters: SpeculationCounters
    """The engine's counts of this response."""


def complete(
    url: str,
    model: str,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    max_tokens: int,
    concurrency: int = 8,
    logprobs: bool = False,
    arrived: Callable[[int, Completion], None] | None = None,
) -> list[Completion]:
    """Responses to `prompts` (token ids) in order, with `concurrency` requests in flight.

    `arrived` gets the index and the response of each request when it is answered, in its thread.
    The first error is raised when all requests have ended.
    """
    timeout_s = request_timeout_s(max_tokens, concurrency)

    def one(index: int) -> Completion:
        body: dict[str, Any] = {
            "model": model,
            "prompt": list(prompts[index]),
            "max_tokens": max_tokens,
            **sampling.request(),
            "return_token_ids": True,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed + index
        if logprobs:
            body["logprobs"] = 0
        answer = post(url, "/v1/completions", body, timeout_s)
        (choice,) = answer["choices"]
        speculation = (answer.get("metrics") or {}).get("speculative_decoding")
        completion = Completion(
            choice["prompt_token_ids"],
            choice["token_ids"],
            choice["text"],
            choice["finish_reason"],
            choice["logprobs"]["token_logprobs"] if logprobs else None,
            SpeculationCounters.of_response(speculation, len(choice["token_ids"])),
        )
        if arrived is not None:
            arrived(index, completion)
        return completion

    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(one, range(len(prompts))))


def request_timeout_s(max_tokens: int, concurrency: int) -> float:
    """Seconds after which a request is given up: 600, and LEAST_TOKENS_PER_S for all in flight."""
    return 600 + max_tokens * concurrency / LEAST_TOKENS_PER_S


def post(url: str, path: str, body: dict[str, Any], timeout_s: float = 600) -> dict[str, Any]:
    """The JSON answer to a POST.

    An error status or a lost connection is an `OutriderError` with the server's message.
    """
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            answer: dict[str, Any] = json.load(response)
            return answer
    except urllib.error.HTTPError as error:
        raise OutriderError(
            f"{url}{path}: {error.code} {error.read().decode(errors='replace')[:2000]}"
        ) from error
    except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
        raise OutriderError(
            f"{url}{path}: no answer ({error}); if the server has ended, its log has the reason"
        ) from error
