"""What production's prefix cache holds of each held-out prompt, by replay of the log.

    log = customers_log(context.data.sequences)
    cache = ProductionCache(log, requests.timed, requests.fields)
    expected = cache.restore(server, prompts)       # before these prompts are timed

vLLM keeps the KV cache of prompts and responses until it needs the memory, and computes a prompt
only from its first block that is not in it. So a turn finds the earlier ones of its conversation,
and any request a shared system prompt. Timed requests are a few from all of the held-out part: what
production had computed before them is not in their engine. It is known, though, because it depends
on nothing but the token ids of earlier requests: the log is replayed through a cache as large as
the engine's, and what a prompt finds there is computed by an untimed request.

The replay assumes one server that serves the whole log in the log's order; with data parallelism,
vLLM spreads requests over engines that share no cache. More replicas, or a log that is a sample,
find less unless a conversation stays on its replica. 100,000 rows of 1,500 tokens take 16 s.
"""

import random
from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray

from outrider.data.sequences import Tables, load_sequences, log_order
from outrider.eval.bench.prompts import Prompt
from outrider.eval.bench.request_fields import RequestFields
from outrider.eval.config import SEED
from outrider.serving.client import KvCache, Sampling, complete
from outrider.serving.server import Server
from outrider.speculators.lookup_history import salt_of

COLUMNS = ["sequence_id", "tenant", "token_ids", "completion_start"]


def customers_log(tables: Tables) -> Dataset:
    """The customer's sequences in the log's order; `tables` may have general ones after them."""
    customers = tables if isinstance(tables, str) or not isinstance(tables, Sequence) else tables[0]
    log = load_sequences(customers)
    order = log_order(log["time"])
    return log.select(sorted(range(len(log)), key=order.__getitem__)).select_columns(COLUMNS)


class ProductionCache:
    """Brings an engine's prefix cache to the state that timed prompts meet in production."""

    def __init__(self, log: Dataset, prompts: Sequence[Prompt], fields: RequestFields) -> None:
        """`log` has the columns COLUMNS in the log's order; `prompts` are those that are timed.

        If `fields` gives any of them a `cache_salt`, all requests of the log had their tenant's.
        """
        self._log = log
        self._salts = {
            prompt.sequence_id: str(fields.get(prompt.text, {}).get("cache_salt", ""))
            for prompt in prompts
        }
        self._held: dict[KvCache, dict[str, int]] = {}

    def restore(self, server: Server, prompts: Sequence[Prompt]) -> int:
        """Fills the server's empty prefix cache with what production's holds of the prompts.

        Returns the number of prompt tokens that they then find in it.
        """
        cache = server.kv_cache
        if not cache.keeps_prefixes:
            return 0
        held = self.held_tokens(cache)
        prefixes = [prompt.token_ids[: held[prompt.sequence_id]] for prompt in prompts]
        by_salt: dict[str, list[list[int]]] = {}
        for prompt, prefix in zip(prompts, prefixes, strict=True):
            by_salt.setdefault(self._salts[prompt.sequence_id], []).append(prefix)
        missing = [
            (salt, prefix) for salt, group in by_salt.items() for prefix in longest_prefixes(group)
        ]
        for engine in range(cache.engines if missing else 0):  # any may get the timed request
            complete(
                url=server.url,
                model=server.model_name,
                prompts=[prefix for _, prefix in missing],
                fields=[{"cache_salt": salt} if salt else {} for salt, _ in missing],
                sampling=Sampling(),
                max_tokens=1,
                engine=engine if cache.engines > 1 else None,
            )
        computed_again = cache.block_size if server.recomputes_last_block else 0
        return sum(max(len(prefix) - computed_again, 0) for prefix in prefixes)

    def held_tokens(self, cache: KvCache) -> dict[str, int]:
        """Tokens of each timed prompt that such a cache holds when it arrives, by sequence id."""
        if cache not in self._held:
            salted = any(self._salts.values())
            self._held[cache] = held_prefixes(self._log, {*self._salts}, cache, salted=salted)
        return self._held[cache]


def held_prefixes(
    log: Dataset, timed: set[str], cache: KvCache, *, salted: bool = False
) -> dict[str, int]:
    """Tokens of the `timed` prompts that the cache holds when they arrive, by sequence id.

    If requests are `salted`, those of different tenants share no blocks.
    As vLLM 0.32: blocks are found up to the first that is missing, and never the last token of a
    prompt (v1/core/kv_cache_manager.py:289); a response's last token was never computed.
    """
    engines: list[OrderedDict[int, None]] = [OrderedDict() for _ in range(cache.engines)]
    # vLLM gives a request to the least busy engine, whatever is in its cache
    # (v1/engine/core_client.py, `get_core_engine_for_request`).
    generator = random.Random(SEED)
    capacity = cache.tokens // cache.block_size
    held: dict[str, int] = {}
    for row in log:
        blocks = generator.choice(engines)
        salt = salt_of(row["tenant"]) if salted else None
        keys = block_keys(np.array(row["token_ids"][:-1], np.int32), cache.block_size, salt)
        name = row["sequence_id"]
        if name in timed:
            usable = keys[: (row["completion_start"] - 1) // cache.block_size]
            first_missing = (index for index, key in enumerate(usable) if key not in blocks)
            held[name] = next(first_missing, len(usable)) * cache.block_size
            if len(held) == len(timed):
                break
        # A request frees its last block first, and the block that was freed first is the next to
        # be overwritten (v1/core/single_type_kv_cache_manager.py, `free`).
        for key in reversed(keys):
            blocks[key] = None
            blocks.move_to_end(key)
        while len(blocks) > capacity:
            blocks.popitem(last=False)
    return held


def block_keys(
    token_ids_T: NDArray[np.int32], block_size: int, salt: str | None = None
) -> list[int]:
    """A key of each whole block, which depends on `salt` and all tokens up to the block's end."""
    keys: list[int] = []
    # vLLM hashes `cache_salt` into the first block (v1/core/kv_cache_utils.py:647).
    key = hash(salt) if salt else 0
    for end in range(block_size, len(token_ids_T) + 1, block_size):
        key = hash((key, token_ids_T[end - block_size : end].tobytes()))
        keys.append(key)
    return keys


def longest_prefixes(prefixes: Sequence[list[int]]) -> list[list[int]]:
    """The prefixes with which no other one begins, without empty ones."""
    uncovered: list[list[int]] = []
    for prefix in sorted(prefixes, key=len, reverse=True):
        if prefix and not any(longer[: len(prefix)] == prefix for longer in uncovered):
            uncovered.append(prefix)
    return uncovered
