"""Plain `vllm serve` against a report of it: another K, another load, other traffic.

The report's acceptance is that of a first pass of the server, its latencies are the sample's.
"""

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from outrider.eval.confirm.confirm import Confirmation, confirm
from outrider.eval.confirm.figures import LENGTH, TPOT
from outrider.eval.confirm.scrape import MetricsWindow, Scrape, read_scrape
from outrider.eval.results.report import Report
from outrider.eval.stats.clusters import clustered_estimate
from outrider.serving.client import Completion, Sampling, complete
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.server import Server
from outrider.serving.speculator import Drafting, Speculator
from tests.eval.confirm.served import sample_report
from tests.serving.conftest import QUESTIONS

pytestmark = [pytest.mark.engine, pytest.mark.slow]

SAMPLING = Sampling(0.6, 0.95)
TOKENS = 48


def plain_server(target: TargetConfig, k: int, log: Path) -> Server:
    """`vllm serve` as the bundle's serve.sh starts it, without an extension and an admin route.

    The hooks stay: on a CPU, vLLM without them accepts 1.1 tokens per step of this target, with
    them 2.0.
    """
    drafting = Drafting(Speculator.from_name(target.directory()), k)
    server = Server(target, EngineConfig(kv_cache_gb=0.25), drafting, log_path=log)
    at = server.command.index("--worker-extension-cls")
    del server.command[at : at + 2]
    return server


def answers(server: Server, prompts: Sequence[list[int]], concurrency: int) -> list[Completion]:
    return complete(
        url=server.url,
        model=server.model_name,
        prompts=prompts,
        sampling=SAMPLING,
        max_tokens=TOKENS,
        concurrency=concurrency,
    )


def report_of(completions: Sequence[Completion], target: TargetConfig) -> Report:
    """The sample's report with the acceptance of these responses at K = 3."""
    counts = [completion.counters for completion in completions]
    sums_N2 = np.array([[one.generation_tokens - 1, one.drafts] for one in counts], float)
    length = clustered_estimate(
        sums_N2, [str(row) for row in range(len(counts))], lambda sums: sums[..., 0] / sums[..., 1]
    )
    reached = np.sum([one.accepted_per_position for one in counts], axis=0)
    chain = 1 + np.cumsum(reached) / sums_N2[:, 1].sum()
    by_k = (chain * length.value / chain[-1]).tolist()
    report = sample_report()
    assert report.replay is not None
    replay = report.replay.model_copy(
        update={"custom": length, "by_k": report.replay.by_k | {"custom": by_k}}
    )
    update = {"replay": replay, "traffic": None, "target": target.model}
    return report.model_copy(update=update)


@pytest.fixture(scope="module")
def target(short_r1: Path) -> TargetConfig:
    return TargetConfig(model=str(short_r1))


@pytest.fixture(scope="module")
def prompts(nano_r1: Path) -> list[list[int]]:
    tokenizer = AutoTokenizer.from_pretrained(nano_r1)
    chats = [[{"role": "user", "content": text}] for text in QUESTIONS]
    texts = tokenizer.apply_chat_template(chats, add_generation_prompt=True, tokenize=False)
    rows: list[list[int]] = tokenizer(texts, add_special_tokens=False).input_ids
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("confirm")


@pytest.fixture(scope="module")
def server(target: TargetConfig, folder: Path) -> Iterator[Server]:
    with plain_server(target, 3, folder / "k3.log") as server:
        yield server


@pytest.fixture(scope="module")
def report(server: Server, prompts: list[list[int]], target: TargetConfig) -> Report:
    return report_of(answers(server, prompts * 6, 4), target)


def counted(
    report: Report, server: Server, prompts: Sequence[list[int]], concurrency: int
) -> Confirmation:
    """The report against what the server counts for these requests."""
    before = read_scrape(server.url)
    answers(server, prompts, concurrency)
    now: Scrape = read_scrape(server.url)
    return confirm(report, MetricsWindow([now.since(before)]))


def test_the_same_traffic(report: Report, server: Server, prompts: list[list[int]]) -> None:
    result = counted(report, server, prompts * 6, 2)
    assert result.conditions["seen"].k == 3
    assert result.figures[LENGTH].reading in ("as reported", "undecided"), result.answer


def test_another_load(report: Report, server: Server, prompts: list[list[int]]) -> None:
    result = counted(report, server, prompts * 6, 8)
    load = result.conditions["seen"].load
    assert load is not None and load > 4
    assert result.figures[LENGTH].reading in ("as reported", "undecided"), result.answer
    # The sample's tokens take 2.4 ms, and far more here.
    assert "load" in [cause.name for cause in result.figures[TPOT].because], result.answer


def test_other_traffic(report: Report, server: Server) -> None:
    """Prompts of random tokens."""
    prompts = [[random.randrange(100, 2000) for _ in range(90)] for _ in range(48)]
    result = counted(report, server, prompts, 2)
    length = result.figures[LENGTH]
    assert length.reading in ("lower", "higher"), result.answer
    assert [cause.name for cause in length.because] == ["traffic"]
    assert result.conditions["seen"].prompt_tokens == 90


def test_another_k(
    report: Report, target: TargetConfig, prompts: list[list[int]], folder: Path
) -> None:
    with plain_server(target, 1, folder / "k1.log") as server:
        answers(server, prompts * 6, 2)
        result = confirm(report, MetricsWindow([read_scrape(server.url)]))
    length = result.figures[LENGTH]
    assert length.reading == "lower", result.answer
    assert "K" in [cause.name for cause in length.because], result.answer
    assert report.replay is not None
    lengths = report.replay.by_k["custom"]
    (of_k,) = [cause for cause in length.because if cause.name == "K"]
    assert of_k.effect == pytest.approx(lengths[0] / lengths[2], rel=1e-6)
