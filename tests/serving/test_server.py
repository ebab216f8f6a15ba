"""A real `vllm serve`: counters, load and bundle."""

import json
import re
import socket
from dataclasses import asdict
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from outrider.common.errors import OutriderError
from outrider.serving.bundle.bundle import export_bundle, verify_bundle
from outrider.serving.client import Sampling, complete
from outrider.serving.config import EngineConfig
from outrider.serving.load_generator import LoadGenerator
from outrider.serving.server import Server
from outrider.serving.speculator import Drafting, Speculator
from outrider.speculators.kinds.mtp.checkpoint import load_mtp
from tests.tiny import save_drafter

pytestmark = pytest.mark.engine

ENGINE = EngineConfig(kv_cache_gb=0.25)
"""Two servers are up at a time, and four such tests may run on one machine."""

TOKENS = 32
"""Longest greedy response."""


def test_only_the_server_gets_its_port_while_it_starts(target, tmp_path):
    server = Server(target, ENGINE, log_path=tmp_path / "server.log")
    with server._reserved, socket.socket() as other:
        address = server._reserved.getsockname()
        with pytest.raises(OSError, match="in use"):
            other.bind(address)
        with socket.create_server(address):  # as vLLM does
            socket.create_connection(address).close()


def test_a_block_of_load_is_counted_request_by_request(server, load, prompts, prompt_texts):
    block = load.run_block(
        url=server.url,
        prompts=prompt_texts,
        concurrency=4,
        sampling=Sampling(temperature=0),
        max_tokens=24,
    )
    again = load.run_block(
        url=server.url,
        prompts=prompt_texts,
        concurrency=1,
        sampling=Sampling(temperature=0),
        max_tokens=24,
    )
    with pytest.raises(OutriderError, match="1 of 1 requests failed"):
        load.run_block(
            url=server.url,
            prompts=["word " * 4000],
            concurrency=1,
            sampling=Sampling(temperature=0),
            max_tokens=24,
        )
    assert load._log_path.stat().st_mode & 0o777 == 0o600
    asked = complete(
        url=server.url,
        model=server.model_name,
        prompts=prompts,
        sampling=Sampling(temperature=0),
        max_tokens=24,
        concurrency=1,
    )
    assert [request.output_tokens for request in again.requests] == [
        len(done.token_ids) for done in asked
    ]
    for result in (block, again):
        assert len(result.requests) == len(prompts)
        assert result.counters.generation_tokens == result.output_tokens, (
            "other requests were counted"
        )
        assert all(request.ttft_ms > 0 for request in result.requests)


@pytest.mark.slow
def test_requests_are_sent_with_their_grammars(server, target, prompts, prompt_texts, tmp_path):
    grammar = {"structured_outputs": {"regex": "[0-9]{5,6}"}}
    fields = [grammar if number % 2 == 0 else {} for number in range(len(prompts))]
    greedy = {"sampling": Sampling(temperature=0), "max_tokens": 24, "concurrency": 1}
    asked = {"url": server.url, "model": server.model_name, "prompts": prompts, **greedy}
    free = complete(**asked)
    constrained = complete(**asked, fields=fields)
    tokenizer = AutoTokenizer.from_pretrained(target.directory())
    for sent, without, has_grammar in zip(constrained, free, fields, strict=True):
        text = tokenizer.decode(sent.token_ids, skip_special_tokens=True)
        if has_grammar:
            assert re.fullmatch("[0-9]{5,6}", text)
        else:
            assert sent.token_ids == without.token_ids
    # The load generator sends the same.
    by_text = dict(zip(prompt_texts, fields, strict=True))
    with LoadGenerator(target, tmp_path / "load.log", fields=by_text) as load:
        block = load.run_block(url=server.url, prompts=prompt_texts, **greedy)
    lengths = [len(sent.token_ids) for sent in constrained]
    assert [request.output_tokens for request in block.requests] == lengths
    # Also steps whose drafts the grammar forbids are counted.
    counters = block.counters
    steps = Speculator.from_name(target.directory()).steps(asdict(counters), len(prompts))
    missing = sum(lengths) - len(prompts) - counters.accepted_tokens
    assert steps == max(counters.drafts, missing)


def test_each_request_is_sent_at_its_time(server, load, prompt_texts):
    arrivals = [0.0, 0.0, 0.7, 0.75, 0.8, 1.9, 1.9, 6.0]
    timed = load.run_block(
        url=server.url,
        prompts=prompt_texts,
        concurrency=None,
        sampling=Sampling(temperature=0),
        max_tokens=24,
        arrivals=arrivals,
    )
    closed = load.run_block(
        url=server.url,
        prompts=prompt_texts,
        concurrency=8,
        sampling=Sampling(temperature=0),
        max_tokens=24,
    )
    starts = [request.start_s for request in timed.requests]
    for start, arrival in zip(starts, arrivals, strict=True):
        assert arrival - 0.05 < start < arrival + 30, (starts, arrivals)
    assert timed.seconds > arrivals[-1]
    assert max(request.start_s for request in closed.requests) < arrivals[-1], (
        "the next block kept the times of the last one"
    )
    # Our own prompts, up to the end token or max_tokens, not the random ones of vLLM's traces.
    assert all(0 < request.output_tokens <= 24 for request in timed.requests)
    assert timed.counters.generation_tokens == timed.output_tokens
    # A step delivers once, and deliveries that wait for a slow reader are merged.
    for block in (timed, closed):
        deliveries = sum(len(request.itl_ms) for request in block.requests)
        assert 0 < deliveries <= block.counters.drafts


@pytest.mark.slow
def test_a_bundle_is_served_as_it_was_evaluated(server, target, prompts, k, short_r1, tmp_path):
    save_drafter(load_mtp(short_r1, torch.bfloat16), short_r1, tmp_path / "speculator")
    server.swap(tmp_path / "speculator")
    # Few and one at a time: only then are responses the same bit for bit.
    few = prompts[:3]
    greedy = Sampling(temperature=0)
    before = server.counters()
    done = complete(
        url=server.url,
        model=server.model_name,
        prompts=few,
        sampling=greedy,
        max_tokens=TOKENS,
        concurrency=1,
    )
    counters = server.counters() - before
    for count in ("drafts", "draft_tokens", "accepted_tokens"):
        assert sum(getattr(each.counters, count) for each in done) == getattr(counters, count)
    positions = zip(*(each.counters.accepted_per_position for each in done), strict=True)
    assert tuple(map(sum, positions)) == counters.accepted_per_position
    assert counters.draft_tokens == k * counters.drafts > 0
    assert counters.generation_tokens == sum(len(each.token_ids) for each in done)
    out = tmp_path / "bundle"
    alone_k_else_one = [(1, 1, k), (2, 8, 1)]
    own = Speculator.from_name(tmp_path / "speculator")
    drafting = Drafting(own, k, k_per_batch_size=alone_k_else_one)
    manifest = export_bundle(
        drafting=drafting, target=target, engine=ENGINE, evidence={"recipe": "digest"}, out_dir=out
    )
    assert json.loads((out / "bundle.json").read_text()) == manifest
    length = counters.acceptance_length

    def verify() -> dict[str, Any]:
        return verify_bundle(
            out,
            target,
            ENGINE,
            prompts=few,
            sampling=greedy,
            max_tokens=TOKENS,
            expected=length,
            tolerance=0.01,
            log_path=tmp_path / "bundle.log",
        )

    assert verify()["drafts"] == counters.drafts
    with (out / "model.safetensors").open("ab") as weights:
        weights.write(b"x")
    with pytest.raises(OutriderError, match=r"model\.safetensors: changed"):
        verify()
