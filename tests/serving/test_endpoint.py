"""Measuring an endpoint: eval/bench/endpoint.py on the running server."""

from contextlib import nullcontext

import pytest
from rich.console import Console

from outrider.eval.bench import endpoint
from outrider.eval.bench.endpoint import measure_endpoint, print_endpoint
from outrider.eval.config import EvalConfig
from outrider.serving import load_generator
from outrider.serving.client import Sampling, complete

EVALUATION = EvalConfig(concurrency=[1, 2], requests=2, repeats=2, max_tokens=24)


@pytest.mark.engine
@pytest.mark.slow
def test_an_endpoint_is_measured_by_its_own_counters_and_other_users_are_reported(
    server, target, prompts, prompt_texts, load, k, tmp_path, monkeypatch
):
    def measured(evaluation):
        console = Console(record=True, width=120)
        results = measure_endpoint(
            url=f"{server.url}/",
            target=target,
            prompts=prompt_texts,
            sampling=greedy,
            settings=evaluation,
            log_dir=tmp_path,
            say=print,
        )
        print_endpoint(results, console)
        return results, console.export_text()

    greedy = Sampling(0.0, 1.0)
    results, text = measured(EVALUATION)
    assert results["model"] == server.model_name
    for concurrency, requests in (("1", 4), ("2", 8)):
        row = results["measured"][concurrency]
        assert row["requests"] == requests and row["tokens_per_s"] > 0
        assert row["share"] == pytest.approx(1) and len(row["cumulative"]) == k, row
        assert 1 < row["acceptance_length"] <= k + 1
        assert row["acceptance_length"] == pytest.approx(1 + sum(row["cumulative"]))
    assert f"{results['measured']['1']['acceptance_length']:.3f}" in text and "warning" not in text

    real = load_generator.read_counters

    def counting(url):
        counters = real(url)
        complete(
            url=server.url,
            model=server.model_name,
            prompts=prompts[:2],
            sampling=greedy,
            max_tokens=16,
        )
        return counters

    monkeypatch.setattr(load_generator, "read_counters", counting)
    monkeypatch.setattr(endpoint, "LoadGenerator", lambda *_: nullcontext(load))  # started already
    results, text = measured(EVALUATION.model_copy(update={"concurrency": [1]}))
    assert results["measured"]["1"]["share"] < 0.8 and "others use it" in text
