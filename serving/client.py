"""Completions from a server, token for token: for lossless checks and for recording traffic.

completions = complete(server.url, server.model_name, [[0, 17, 4]], Sampling(temperature=0), max_tokens=64)
"""

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from outrider.common.errors import OutriderError


@dataclass(frozen=True)
class Sampling:
    """How the target's tokens are drawn."""

    temperature: float = 0.6
    top_p: float = 0.95
    seed: int | None = None
    """The first request's seed; the i-th takes seed + i. None draws differently each time. Leave it None on a CPU: vLLM 0.32's
    worker ends at a seeded request there ("CPU Generator does not use offset")."""


@dataclass(frozen=True)
class Completion:
    """One response: exactly the tokens that the engine saw and produced."""

    prompt_token_ids: list[int]
    token_ids: list[int]
    """With the end-of-sequence token where there is one."""
    text: str
    finish_reason: str
    logprobs: list[float] | None
    """Log-probability of each token before temperature and top-p, if asked for."""


def complete(
    url: str,
    model: str,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    max_tokens: int,
    concurrency: int = 8,
    logprobs: bool = False,
    timeout_s: float = 600,
) -> list[Completion]:
    """The responses to `prompts` (token ids), in their order, `concurrency` requests at a time."""

    def one(index: int) -> Completion:
        body: dict[str, Any] = {
            "model": model,
            "prompt": list(prompts[index]),
            "max_tokens": max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "return_token_ids": True,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed + index
        if logprobs:
            body["logprobs"] = 0
        (choice,) = post(url, "/v1/completions", body, timeout_s)["choices"]
        return Completion(
            choice["prompt_token_ids"],
            choice["token_ids"],
            choice["text"],
            choice["finish_reason"],
            choice["logprobs"]["token_logprobs"] if logprobs else None,
        )

    with ThreadPoolExecutor(concurrency) as pool:
        return list(pool.map(one, range(len(prompts))))


def post(url: str, path: str, body: dict[str, Any], timeout_s: float = 600) -> dict[str, Any]:
    """The JSON answer to one POST; a refusal or a lost connection is an `OutriderError` with the server's words."""
    request = urllib.request.Request(
        url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise OutriderError(
            f"{url}{path}: {error.code} {error.read().decode(errors='replace')[:2000]}"
        ) from error
    except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
        raise OutriderError(
            f"{url}{path}: no answer ({error}); has the server ended? its log says why"
        ) from error
