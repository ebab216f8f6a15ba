"""Servers: swapped speculators draft as those of the start, block verification accepts no less."""

from pathlib import Path
from typing import Any

import pytest

from outrider.serving.client import Sampling, complete
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.server import Server
from outrider.serving.speculator import Drafting, Speculator
from outrider.speculators.kinds.protocol import Runner
from tests.gpu.inputs import (
    NANO,
    K,
    engine_config,
    logged_prompts,
    random_r1,
    weakened_speculator,
)

pytestmark = pytest.mark.engine

Answers = tuple[list[list[int]], float]
"""Responses, and the acceptance length while they were written."""


def test_base_custom_base(on_gpu, tmp_path, record_property):
    """The second time base accepts what it did the first time, and custom less.

    Kernels of a compiled engine may depend on the batch, so that 2 % are allowed; one request at
    a time on a CPU gives the same counts.
    """
    count, tokens, allowed = (32, 128, 0.02) if on_gpu else (3, 24, 0.0)
    runs, swap_s = swapped(NANO, engine_config(on_gpu), tmp_path, count, tokens, on_gpu)
    (texts, first), (other_texts, weaker), (again_texts, again) = runs
    same = sum(a == b == c for a, b, c in zip(texts, other_texts, again_texts, strict=True))
    for name, value in (("base", first), ("custom", weaker), ("base_again", again)):
        record_property(f"acceptance_length_{name}", value)
    record_property("swap_seconds", swap_s)
    assert again == pytest.approx(first, rel=allowed)
    assert weaker < 0.9 * first, "custom's weights are not used"
    assert same >= (1 - 5 * allowed) * count, "greedy responses changed with the speculator"


def test_fp8_under_cuda_graphs(on_gpu, tmp_path, record_property):
    """Swapped to custom against started with it, with R1's head widths, one request at a time."""
    target = random_r1(tmp_path, fp8=on_gpu)
    engine = engine_config(on_gpu, environment={})
    count, tokens = (16, 128) if on_gpu else (3, 48)
    (base, custom, again), _ = swapped(target, engine, tmp_path, count, tokens, False)
    drafting = Drafting(Speculator.from_name(tmp_path / "custom"), K)
    with Server(target, engine, drafting, log_path=tmp_path / "started.log") as server:
        started = answered(server, logged_prompts(count), tokens, 1)
    for name, (_, length) in (("base", base), ("custom", custom), ("started", started)):
        record_property(f"acceptance_length_{name}", length)
    assert custom == started and again == base
    assert custom[1] != base[1], "both accept as much: nothing was compared"


def test_two_servers_share_a_gpu(on_gpu, tmp_path, record_property):
    """With the sizes of the demo's recipe, in which base and custom take turns by request."""
    engine = engine_config(on_gpu)
    if on_gpu:
        engine = engine.model_copy(update={"kv_cache_gb": 0.5, "gpu_memory_utilization": 0.2})
    count, tokens = (16, 64) if on_gpu else (2, 16)
    drafting = Drafting(Speculator.from_name(NANO.directory()), K)
    with (
        Server(NANO, engine, drafting, log_path=tmp_path / "drafting.log") as one,
        Server(NANO, engine, None, log_path=tmp_path / "none.log") as two,
    ):
        texts, length = answered(one, logged_prompts(count), tokens, 1)
        others, _ = answered(two, logged_prompts(count), tokens, 1)
    record_property("acceptance_length", length)
    same = sum(a == b for a, b in zip(texts, others, strict=True))
    assert same >= (0.9 if on_gpu else 1.0) * count, "greedy responses changed with speculation"


@pytest.mark.gpu
def test_data_parallel_ranks_with_experts_answer_as_one(two_gpus, tmp_path, record_property):
    """No twin: data-parallel ranks have not run without GPUs."""
    target = random_r1(tmp_path, fp8=False)
    prompts = logged_prompts(32)
    runs = []
    for ranks in (1, 2):
        engine = engine_config(
            True,
            environment={},
            data_parallel=ranks,
            extra_arguments={"enable_expert_parallel": ranks > 1},
        )
        drafting = Drafting(Speculator.from_name(target.directory()), K)
        log = tmp_path / f"server-{ranks}.log"
        with Server(target, engine, drafting, log_path=log) as server:
            runs.append(answered(server, prompts, 64, len(prompts)))
    record_property("acceptance_length_one", runs[0][1])
    record_property("acceptance_length_two", runs[1][1])
    # A random target's greedy choices are near ties: acceptance is compared rather than tokens.
    assert runs[1][1] == pytest.approx(runs[0][1], rel=0.1)


class BlockDrafting(Drafting):
    """Drafts that are verified together (Sun et al., arXiv 2403.10444)."""

    def settings(self, runner: Runner) -> dict[str, Any] | None:
        settings = super().settings(runner)
        return None if settings is None else settings | {"rejection_sample_method": "block"}


@pytest.mark.gpu
def test_block_verification_accepts_no_less(gpu, tmp_path, record_property):
    """With probabilistic drafts; greedy responses stay the same.

    Its expected acceptance is at least that of vLLM's standard rejection sampling. In vLLM 0.32
    only model runner V2 has it (v1/worker/gpu/spec_decode/rejection_sampler.py:174), which needs
    Triton. V1's sampler, a CPU's, ignores `rejection_sample_method: block` without a word.
    No twin: its kernel has not been run in the interpreter.
    """
    environment = {"VLLM_USE_V2_MODEL_RUNNER": "1", "VLLM_MLA_DISABLE": "1"}
    engine = engine_config(True, environment=environment)
    prompts = logged_prompts(64)
    lengths: dict[str, float] = {}
    texts: list[list[list[int]]] = []
    for name, drafting in (("standard", Drafting), ("block", BlockDrafting)):
        drafts = drafting(Speculator.from_name(NANO.directory()), K, "probabilistic")
        with Server(NANO, engine, drafts, log_path=tmp_path / f"{name}.log") as server:
            _, lengths[name] = answered(server, prompts, 128, 16, temperature=0.8)
            record_property(f"acceptance_length_{name}", lengths[name])
            texts.append(answered(server, prompts[:8], 128, 1)[0])
    assert lengths["block"] > 0.97 * lengths["standard"]
    assert sum(a == b for a, b in zip(*texts, strict=True)) >= 7


def swapped(
    target: TargetConfig,
    engine: EngineConfig,
    folder: Path,
    count: int,
    tokens: int,
    together: bool,
) -> tuple[list[Answers], float]:
    """Answers with base, custom and base again, and the longest swap in seconds."""
    custom = weakened_speculator(target, folder / "custom")
    base = target.directory()
    prompts = logged_prompts(count)
    runs = []
    swap_s = []
    drafting = Drafting(Speculator.from_name(base), K)
    with Server(target, engine, drafting, log_path=folder / "server.log") as server:
        for directory in (base, custom, base):
            server.swap(directory)
            swap_s.append(server.swap_seconds or 0.0)
            runs.append(answered(server, prompts, tokens, count if together else 1))
    return runs, max(swap_s)


def answered(
    server: Server,
    prompts: list[list[int]],
    tokens: int,
    concurrency: int,
    temperature: float = 0.0,
) -> Answers:
    before = server.counters()
    sampling = Sampling(temperature, 1.0)
    completions = complete(
        url=server.url,
        model=server.model_name,
        prompts=prompts,
        sampling=sampling,
        max_tokens=tokens,
        concurrency=concurrency,
    )
    texts = [completion.token_ids for completion in completions]
    return texts, (server.counters() - before).acceptance_length
