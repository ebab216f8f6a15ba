"""Lookups: n-gram lookup takes the replayed steps, suffix lookup in V1 against V2 without."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.eval.replay.lookups import LoggedText, lookup_sums
from outrider.serving.client import Sampling, complete
from outrider.serving.config import EngineConfig
from outrider.serving.runner import VARIABLE, runner_of
from outrider.serving.server import Server
from outrider.serving.speculator import Drafting, Speculator
from outrider.speculators.kinds import kind_named
from outrider.speculators.kinds.protocol import Lookup, Runner
from tests.gpu.inputs import NANO, K, engine_config, logged_prompts

pytestmark = pytest.mark.engine

SETTINGS = [{}, {"prompt_lookup_min": 1, "prompt_lookup_max": 3}]


@pytest.mark.parametrize("settings", SETTINGS, ids=["default", "short"])
def test_ngram_lookup_takes_the_replayed_steps(on_gpu, settings, tmp_path, record_property):
    """Of its own responses, by the algorithm of the runner that served them."""
    count, tokens = (60, 160) if on_gpu else (8, 64)
    engine = engine_config(on_gpu)
    speculator = Speculator("ngram", settings=settings)
    runner = runner_of(speculator.drafter_kind, engine)
    log = tmp_path / "server.log"
    prompts = logged_prompts(count)
    with Server(NANO, engine, Drafting(speculator, K), log_path=log) as server:
        before = server.counters()
        responses = answered(server, prompts, tokens, temperature=0.6)
        counters = server.counters() - before
    assert runner_in(log) == runner
    texts = [
        LoggedText(
            sequence_id=str(number),
            session="",
            user="",
            token_ids_T=np.array(prompt + response, np.int32),
            completion_start=len(prompt),
        )
        for number, (prompt, response) in enumerate(zip(prompts, responses, strict=True))
    ]
    predicted = steps_of(speculator, texts, runner)
    other = steps_of(speculator, texts, "v1" if runner == "v2" else "v2")
    counted = speculator.steps(vars(counters), count)
    for name, value in (("counted", counted), ("predicted", predicted), ("other_runner", other)):
        record_property(f"steps_{name}", float(value))
    if runner == "v2":
        # It drafts in every step, so vLLM counts them all.
        assert predicted == pytest.approx(counted, rel=0.005)
    else:
        # V1 counts no step without drafts, and accepted drafts past the end of a response.
        cut = sum(len(response) == tokens for response in responses)
        assert counted - 0.005 * counted <= predicted <= 1.005 * counted + K * cut


def test_suffix_lookup_in_v1_against_v2_without(on_gpu, tmp_path, record_property):
    """What V1 costs: suffix lookup runs there only, and other engines on a GPU in V2.

    Where the package of suffix lookup is missing, and on a CPU, n-gram lookup is measured in V1.
    """
    count, tokens = (64, 256) if on_gpu else (3, 24)
    suffix = kind_named("suffix")
    speculator = Speculator("suffix" if suffix.is_installed() else "ngram")
    v1 = engine_config(on_gpu)
    v1 = v1.model_copy(update={"environment": v1.environment | {VARIABLE: "0"}})
    cases: dict[str, tuple[EngineConfig, Drafting | None]] = {
        "none_default": (engine_config(on_gpu), None),
        "none_v1": (v1, None),
        f"{speculator.kind}_v1": (v1, Drafting(speculator, 8)),
    }
    prompts = logged_prompts(count)
    texts: dict[str, list[list[int]]] = {}
    for name, (engine, drafting) in cases.items():
        log = tmp_path / f"{name}.log"
        with Server(NANO, engine, drafting, log_path=log) as server:
            answered(server, prompts[:2], tokens)
            began = time.monotonic()
            texts[name] = answered(server, prompts, tokens, concurrency=1)
            seconds = time.monotonic() - began
            together = answered(server, prompts, tokens)
            seconds_together = time.monotonic() - began - seconds
        kind = kind_named("none") if drafting is None else drafting.speculator.drafter_kind
        assert runner_in(log) == runner_of(kind, engine)
        delivered = sum(map(len, texts[name]))
        record_property(f"tokens_per_s_{name}", delivered / seconds)
        record_property(f"tokens_per_s_{name}_together", sum(map(len, together)) / seconds_together)
    first, *others = texts.values()
    for responses in others:
        same = sum(a == b for a, b in zip(first, responses, strict=True))
        assert same >= (0.9 if on_gpu else 1.0) * count, "greedy text changed"


def steps_of(speculator: Speculator, texts: list[LoggedText], runner: Runner) -> float:
    """Replayed steps with K drafts."""
    lookup = speculator.replay_argument(runner)
    assert isinstance(lookup, Lookup)
    return float(lookup_sums(lookup, texts).steps_RK[:, K - 1].sum())


def runner_in(log: Path) -> Runner:
    """The model runner that a server's log names: vllm/v1/worker/gpu_worker.py:518."""
    return "v2" if "Using V2 Model Runner" in log.read_text(errors="replace") else "v1"


def answered(
    server: Server,
    prompts: list[list[int]],
    tokens: int,
    concurrency: int = 8,
    temperature: float = 0.0,
) -> list[list[int]]:
    """Token ids of the responses."""
    completions: Any = complete(
        url=server.url,
        model=server.model_name,
        prompts=prompts,
        sampling=Sampling(temperature, 1.0),
        max_tokens=tokens,
        concurrency=concurrency,
    )
    return [completion.token_ids for completion in completions]
