"""The replay of production's prefix cache: against vLLM's own cache, and in real servers."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from outrider.eval.bench import prefix_cache
from outrider.eval.bench.closed_loop import measure_closed_loop
from outrider.eval.bench.metrics import SpeedRatios
from outrider.eval.bench.prefix_cache import (
    ProductionCache,
    customers_log,
    held_prefixes,
)
from outrider.eval.bench.prompts import Prompt, spread_sessions
from outrider.eval.bench.servers import Servers
from outrider.eval.config import EvalConfig
from outrider.serving.client import KvCache, Sampling
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.load_generator import LoadGenerator
from outrider.serving.speculator import Speculator
from tests.fuzzing import examples

BLOCK = 4
PLENTY = 1000
"""Blocks of a cache that keeps all that is sent to it here."""


class VllmCache:
    """vLLM's KV cache of `blocks` blocks, through which requests pass one at a time."""

    def __init__(self, blocks: int, use_eagle: bool) -> None:
        import torch
        from vllm.utils.hashing import sha256
        from vllm.v1.core.kv_cache_manager import KVCacheManager
        from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

        init_none_hash(sha256)
        self._hasher = get_request_block_hasher(BLOCK, sha256)
        layer = FullAttentionSpec(
            block_size=BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        # One block of vLLM's pool is a placeholder (v1/core/block_pool.py, `null_block`).
        config = KVCacheConfig(blocks + 1, [], [KVCacheGroupSpec(["layer"], layer)])
        self._manager = KVCacheManager(
            kv_cache_config=config,
            max_model_len=PLENTY * BLOCK,
            scheduler_block_size=BLOCK,
            hash_block_size=BLOCK,
            use_eagle=use_eagle,
        )

    def hits(self, prompt: list[int], response: list[int], salt: str | None = None) -> int:
        """Prompt tokens that the request finds; it leaves its own in the cache."""
        from vllm import SamplingParams
        from vllm.v1.request import Request

        request = Request(
            request_id="name",
            prompt_token_ids=prompt,
            sampling_params=SamplingParams(),
            pooling_params=None,
            cache_salt=salt,
            block_hasher=self._hasher,
        )
        blocks, cached, _ = self._manager.get_computed_blocks(request)
        assert self._manager.allocate_slots(request, len(prompt) - cached, cached, blocks)
        request.num_computed_tokens = len(prompt)
        for token in response[:-1]:
            request.append_output_token_ids(token)
            assert self._manager.allocate_slots(request, 1)
            request.num_computed_tokens += 1
        self._manager.free(request)
        return cached


@st.composite
def chat_logs(draw: st.DrawFn) -> list[tuple[list[int], list[int]]]:
    """Prompts and responses of interleaved conversations; many share a beginning."""
    token = st.integers(0, 2)  # few, so that texts agree by chance, too
    system = draw(st.lists(token, max_size=20))
    turns = draw(st.lists(st.integers(0, 3), min_size=1, max_size=12))
    conversations = {session: list(system) for session in turns}
    rows = []
    for session in turns:
        question = draw(st.lists(token, min_size=1, max_size=12))
        response = draw(st.lists(token, min_size=1, max_size=12))
        prompt = conversations[session] + question
        rows.append((prompt, response))
        shown = draw(st.integers(0, len(response)))  # templates drop the reasoning
        conversations[session] = prompt + response[shown:]
    return rows


def table(rows: list[tuple[list[int], list[int]]], tenants: Sequence[str] = ("",)) -> Dataset:
    """A log of these prompts and responses; requests are of the `tenants` in turn."""
    return Dataset.from_list(
        [
            {
                "sequence_id": f"q{number}",
                "token_ids": prompt + response,
                "completion_start": len(prompt),
                "tenant": tenants[number % len(tenants)],
            }
            for number, (prompt, response) in enumerate(rows)
        ]
    )


@examples(40)
@given(rows=chat_logs(), use_eagle=st.booleans())
def test_a_request_finds_after_its_prefix_what_it_finds_after_the_whole_log(
    rows: list[tuple[list[int], list[int]]], use_eagle: bool
) -> None:
    production = VllmCache(PLENTY, use_eagle)
    size = KvCache(tokens=PLENTY * BLOCK, block_size=BLOCK, keeps_prefixes=True)
    held = held_prefixes(table(rows), {f"q{number}" for number in range(len(rows))}, size)
    for number, (prompt, response) in enumerate(rows):
        found = production.hits(prompt, response)
        restored = VllmCache(PLENTY // 5, use_eagle)
        prefix = held[f"q{number}"]
        if prefix:
            restored.hits(prompt[:prefix], [0])
        assert restored.hits(prompt, [0]) == found
        assert found == max(prefix - BLOCK * use_eagle, 0)


def long_log(random: np.random.Generator) -> list[tuple[list[int], list[int]]]:
    """Prompts and responses of ten conversations at a time, which begin again when long."""
    system = random.integers(0, 50, 12).tolist()
    conversations = [system] * 10
    rows = []
    for _ in range(120):
        session = random.integers(len(conversations))
        text = conversations[session] if len(conversations[session]) <= 120 else system
        prompt = text + random.integers(0, 50, random.integers(1, 12)).tolist()
        response = random.integers(0, 50, random.integers(1, 16)).tolist()
        rows.append((prompt, response))
        conversations[session] = prompt + response[random.integers(len(response)) :]
    return rows


@pytest.mark.parametrize("blocks", [60, 140])
def test_a_full_cache_has_dropped_what_vllm_s_has(blocks: int) -> None:
    rows = long_log(np.random.default_rng(blocks))
    production = VllmCache(blocks, use_eagle=False)
    names = {f"q{number}" for number in range(len(rows))}
    found = [production.hits(prompt, response) for prompt, response in rows]

    def held(size: int) -> list[int]:
        cache = KvCache(tokens=size * BLOCK, block_size=BLOCK, keeps_prefixes=True)
        return [*held_prefixes(table(rows), names, cache).values()]

    assert sum(found) < 0.9 * sum(held(PLENTY))
    # vLLM has a block or two less: a last block that is not full, and copies of blocks that it
    # computes again because they have a prompt's last token.
    assert sum(found) == pytest.approx(sum(held(blocks)), rel=0.01)
    assert np.mean(np.array(found) == np.array(held(blocks))) > 0.93


def test_tenants_share_no_cache_if_their_requests_are_salted() -> None:
    rows = long_log(np.random.default_rng(7))
    tenants = ["acme", "umbrella", "", "acme"]
    production = VllmCache(PLENTY, use_eagle=False)
    found = [
        production.hits(prompt, response, tenants[number % len(tenants)] or None)
        for number, (prompt, response) in enumerate(rows)
    ]
    size = KvCache(tokens=PLENTY * BLOCK, block_size=BLOCK, keeps_prefixes=True)
    names = {f"q{number}" for number in range(len(rows))}
    log = table(rows, tenants)
    assert [*held_prefixes(log, names, size, salted=True).values()] == found
    assert sum(held_prefixes(log, names, size).values()) > sum(found)


def test_engines_of_data_parallelism_share_no_cache() -> None:
    rows = [([1] * 4 * BLOCK, [2])] * 200
    names = {f"q{number}" for number in range(len(rows))}

    def held(engines: int) -> list[int]:
        cache = KvCache(tokens=PLENTY, block_size=BLOCK, keeps_prefixes=True, engines=engines)
        return [*held_prefixes(table(rows), names, cache).values()]

    # Each engine computes the prompt once; its last block has the last token.
    for engines in (1, 4):
        assert held(engines).count(0) == engines
        assert held(engines).count(3 * BLOCK) == len(rows) - engines


def test_every_engine_gets_the_longest_prefixes_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two turns of one conversation only the later one's, which begins with the earlier's."""
    system = [7] * 2 * BLOCK
    conversation = [*system, *range(20, 20 + 2 * BLOCK)]
    prompts = [[*system, 1, 2], [*conversation, 3], [*conversation, 4, *[5] * BLOCK, 6], [8]]
    rows = [(system, [9]), ([*conversation, *prompts[2][-BLOCK - 2 :]], [9])]
    rows += [(prompt, [9]) for prompt in prompts]
    asked = [
        Prompt(
            sequence_id=f"q{number + 2}", session="", user="", token_ids=prompt, text=str(number)
        )
        for number, prompt in enumerate(prompts)
    ]
    sent = []
    monkeypatch.setattr(prefix_cache, "complete", lambda **request: sent.append(request))
    server = SimpleNamespace(
        url="",
        model_name="r1",
        kv_cache=KvCache(tokens=PLENTY, block_size=BLOCK, keeps_prefixes=True),
        recomputes_last_block=False,
    )
    production = ProductionCache(table(rows), asked, {})
    # The third prompt was seen whole, so all but the block of its last token is found.
    assert production.restore(server, asked) == BLOCK * (2 + 4 + 5)
    assert [(request["prompts"], request["engine"]) for request in sent] == [
        ([prompts[2][: 5 * BLOCK]], None)
    ]
    sent.clear()
    # Of two tenants, each needs a prefix of its own.
    of_acme = {str(number): {"cache_salt": "acme"} for number in (0, 1)}
    log = table(rows, ["acme", "", "acme", "acme", "", ""])
    salted = ProductionCache(log, asked, of_acme)
    assert salted.restore(server, asked) == BLOCK * (2 + 2 + 5)
    (request,) = sent
    assert request["prompts"] == [prompts[0][: 2 * BLOCK], prompts[2][: 5 * BLOCK]]
    assert request["fields"] == [{"cache_salt": "acme"}, {}]
    sent.clear()
    server.recomputes_last_block = True
    assert production.restore(server, asked) == BLOCK * (1 + 3 + 4)
    sent.clear()
    server.kv_cache = KvCache(tokens=PLENTY, block_size=BLOCK, keeps_prefixes=True, engines=2)
    production.restore(server, asked)
    assert [request["engine"] for request in sent] == [0, 1]
    sent.clear()
    server.kv_cache = KvCache(tokens=PLENTY, block_size=BLOCK, keeps_prefixes=False)
    assert production.restore(server, asked) == 0 and not sent


def test_the_log_is_the_customer_s_in_its_order(tmp_path: Path) -> None:
    names = ["late", "early", "after early", "first"]
    times = [1.7e9 + 60, 1.7e9, None, 1.6e9]
    for folder, prefix in (("customer", ""), ("general", "general ")):
        rows = [
            {
                "sequence_id": prefix + name,
                "token_ids": [1, 2],
                "completion_start": 1,
                "time": time,
                "tenant": "",
                "grammar": "",
            }
            for name, time in zip(names, times, strict=True)
        ]
        Dataset.from_list(rows).save_to_disk(tmp_path / folder)
    expected = ["first", "early", "after early", "late"]
    for tables in (tmp_path / "customer", [tmp_path / "customer", tmp_path / "general"]):
        assert customers_log(tables)["sequence_id"][:] == expected


SIZE = 32
"""Tokens of a block in the servers: the smallest with which vLLM runs attention on a CPU."""
SESSIONS, TURNS = 6, 3
SYSTEM = "You answer questions about the orders of a shop, in one short sentence. " * 8


def chat_log(tokenizer) -> list[dict]:
    """Conversations that take turns, with a shared system prompt; the rows of a table."""
    texts = [f"<｜begin▁of▁sentence｜>{SYSTEM}"] * SESSIONS
    rows = []
    for turn, session in itertools.product(range(TURNS), range(SESSIONS)):
        question = f"Where is order {turn} of customer {session}? " * 3
        prompt = f"{texts[session]}<｜User｜>{question}<｜Assistant｜>"
        response = f"Order {turn} of customer {session} was sent yesterday.<｜end▁of▁sentence｜>"
        texts[session] = prompt + response
        prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)
        rows.append(
            {
                "sequence_id": f"q{len(rows)}",
                "tenant": "",
                "session": f"s{session}",
                "user": "",
                "prompt_text": prompt,
                "token_ids": tokenizer.encode(texts[session], add_special_tokens=False),
                "completion_start": len(prompt_ids),
            }
        )
    return rows


def common(one: list[int], another: list[int]) -> int:
    """Number of tokens with which both begin."""
    pairs = enumerate(zip(one, another, strict=False))
    return next((at for at, (left, right) in pairs if left != right), min(len(one), len(another)))


@pytest.mark.slow
@pytest.mark.engine
def test_timed_requests_find_in_real_servers_what_the_log_holds(short_r1, tmp_path):
    """Base and custom have the same weights in one server, and find nothing of each other."""
    rows = chat_log(AutoTokenizer.from_pretrained(short_r1))
    heldout = [row for row in rows if row["session"] in ("s2", "s3", "s4", "s5")]
    prompts = [
        Prompt(
            sequence_id=row["sequence_id"],
            session=row["session"],
            user="",
            token_ids=row["token_ids"][: row["completion_start"]],
            text=row["prompt_text"],
        )
        for row in (
            heldout[index] for index in spread_sessions([row["session"] for row in heldout])
        )
    ]
    # Each block of concurrency 1 or 2 has one turn of each of the four sessions.
    settings = EvalConfig(
        engine_modes=["eager"],
        concurrency=[1, 2],
        requests=4,
        repeats=3,
        starts=1,
        max_tokens=6,
    )
    speeds = SpeedRatios(settings, prompts, main=1)
    speculators = {name: Speculator("mtp", short_r1) for name in ("base", "custom")}
    engine = EngineConfig(
        max_num_seqs=4,
        max_model_len=1024,
        kv_cache_gb=0.25,
        extra_arguments={"block_size": SIZE},
    )
    target = TargetConfig(model=str(short_r1))
    with (
        LoadGenerator(target, tmp_path / "load.log") as load,
        Servers(
            target=target,
            serving=ServingConfig(engine=engine),
            speculators=speculators,
            numbers=dict.fromkeys(speculators, (2,)),
            log_dir=tmp_path,
        ) as servers,
    ):
        blocks = measure_closed_loop(
            servers,
            mode="eager",
            plan={"none": None, "base": 2, "custom": 2},
            load=load,
            sampling=Sampling(0.0, 1.0),
            speeds=speeds,
            say=print,
            production=ProductionCache(Dataset.from_list(rows), prompts, {}),
        )

    def logged(dropped: int) -> float:
        """The log's own rate for the prompts, from each one's longest common beginning."""
        cached = 0
        for row in heldout:
            prompt = row["token_ids"][: row["completion_start"]]
            earlier = rows[: rows.index(row)]
            longest = max(common(prompt[:-1], before["token_ids"][:-1]) for before in earlier)
            cached += max(longest // SIZE - dropped, 0) * SIZE
        return cached / sum(row["completion_start"] for row in heldout)

    assert logged(0) > 0.7
    for size in ("1", "2"):
        row = speeds.summarise(blocks)[size]
        for variant, dropped in (("none", 0), ("base", 1), ("custom", 1)):
            cache = row.of(variant).cache
            assert cache.hit_rate == pytest.approx(cache.production_hit_rate)
            assert cache.hit_rate == pytest.approx(logged(dropped), abs=0.001)
            assert cache.preemptions == 0
        # The MTP layer has a KV cache, too.
        assert row.custom.cache.kv_tokens == row.base.cache.kv_tokens < row.none.cache.kv_tokens
