"""Memory, load time and step time of suffix lookup's history.

    python -m benchmarks.lookup_memory --responses 100000 --tokens 200 [--tree 10000]

The text is synthetic: phrases of 8 to 40 tokens, cut at random, with up to 11 unrelated tokens in
between (`repetitive`), or unrelated tokens only (`unrelated`), all with the frequencies of words
(Zipf). A step is what the engine's worker does for each request of a batch: it adds two delivered
tokens to the request's tree and asks for 8 drafts. With --tree, the same text is loaded into the
suffix tree of arctic-inference, in which vLLM keeps responses.
"""

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
from numpy.typing import NDArray

from outrider.speculators.kinds.suffix import HISTORY_FILE, SuffixLookup, lookup_cache
from outrider.speculators.lookup_history import EarlierResponse
from outrider.speculators.suffix_array import DEPTH

VOCABULARY, PHRASES = 50_000, 20_000
BATCH, K, FACTOR, STEPS = 8, 8, 2.0, 2000


def zipf(random: np.random.Generator, numbers: int, size: int) -> NDArray[np.int64]:
    shares = 1 / np.arange(1, numbers + 1)
    return np.searchsorted(np.cumsum(shares / shares.sum()), random.random(size))


def unrelated(random: np.random.Generator, tokens: int) -> NDArray[np.int32]:
    return zipf(random, VOCABULARY, tokens).astype(np.int32)


def repetitive(random: np.random.Generator, tokens: int) -> NDArray[np.int32]:
    sizes = random.integers(8, 41, PHRASES)
    starts = np.cumsum(sizes) - sizes
    words = unrelated(random, int(sizes.sum()))
    chosen = zipf(random, PHRASES, tokens // 10)
    cuts = random.integers(4, sizes[chosen] + 1)
    gaps = random.integers(0, 12, len(chosen))
    ends = np.cumsum(cuts + gaps)
    text = unrelated(random, int(ends[-1]))
    inside = np.arange(cuts.sum()) - np.repeat(np.cumsum(cuts) - cuts, cuts)
    text[np.repeat(ends - cuts - gaps, cuts) + inside] = words[
        np.repeat(starts[chosen], cuts) + inside
    ]
    return text[:tokens]


def resident_gb() -> float:
    gc.collect()
    return psutil.Process().memory_info().rss / 1e9


def step_ms(cache, text_RT: NDArray[np.int32], random: np.random.Generator) -> dict[str, float]:
    """Milliseconds of a step for BATCH requests, and drafts per request."""
    half = text_RT.shape[1] // 2
    drafted = 0
    seconds = []
    rows = random.integers(len(text_RT), size=BATCH)
    for request, row in enumerate(rows):
        cache.start_request(request, text_RT[row, :half])
    for step in range(STEPS):
        end = half + 2 * (step % (half // 2 - 1))
        if end == half:
            for request in range(BATCH):
                cache.stop_request(request)
            rows = random.integers(len(text_RT), size=BATCH)
            for request, row in enumerate(rows):
                cache.start_request(request, text_RT[row, :half])
        began = time.thread_time()  # of a core, because others may use the machine
        for request, row in enumerate(rows):
            cache.add_active_response(request, text_RT[row, end : end + 2])
            draft = cache.speculate(
                request,
                text_RT[row, end + 2 - DEPTH : end + 2],
                max_spec_tokens=K,
                max_spec_factor=FACTOR,
                min_token_prob=0.1,
            )
            drafted += len(draft.token_ids)
        seconds.append(time.thread_time() - began)
    for request in range(BATCH):
        cache.stop_request(request)
    milliseconds = 1000 * np.array(seconds)
    return {
        "median": float(np.median(milliseconds)),
        "p99": float(np.quantile(milliseconds, 0.99)),
        "drafts": drafted / BATCH / STEPS,
    }


def measure(text_RT: NDArray[np.int32], folder: Path, tree: int) -> Iterator[dict[str, object]]:
    random = np.random.default_rng(1)
    began = time.perf_counter()
    responses = (EarlierResponse(row_T) for row_T in text_RT)
    SuffixLookup().prepare(responses, folder, max_gb=16, shared=True)
    file_gb = (folder / HISTORY_FILE).stat().st_size / 1e9
    yield {"written_s": time.perf_counter() - began, "file_gb": file_gb}

    cache = lookup_cache()
    before = resident_gb()
    began = time.perf_counter()
    cache.load(folder / HISTORY_FILE)  # reads the file and compiles the search
    yield {"load_s": time.perf_counter() - began, "memory_gb": resident_gb() - before}
    began = time.perf_counter()
    cache.load(folder / HISTORY_FILE)
    yield {"swap_s": time.perf_counter() - began}
    yield {"step_ms": step_ms(cache, text_RT, random)}
    if tree:
        yield {"tree": measure_tree(text_RT[:tree])}


def measure_tree(text_RT: NDArray[np.int32]) -> dict[str, object]:
    from arctic_inference.suffix_decoding import SuffixDecodingCache

    before = resident_gb()
    began = time.perf_counter()
    cache = SuffixDecodingCache(DEPTH, -1)
    for number, row_T in enumerate(text_RT):
        cache.start_request(("response", number), [])
        cache.add_active_response(("response", number), row_T)
        cache.stop_request(("response", number))
    load_s = time.perf_counter() - began
    memory_gb = resident_gb() - before
    cache._max_cached_requests = 0
    return {
        "responses": len(text_RT),
        "load_s": load_s,
        "memory_gb": memory_gb,
        "bytes_per_token": 1e9 * memory_gb / text_RT.size,
        "step_ms": step_ms(cache, text_RT, np.random.default_rng(1)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--responses", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--tree", type=int, default=0, help="responses loaded into a tree")
    parser.add_argument("--text", choices=("repetitive", "unrelated"), default="repetitive")
    arguments = parser.parse_args()
    text = {"repetitive": repetitive, "unrelated": unrelated}[arguments.text]
    tokens = arguments.responses * arguments.tokens
    text_RT = text(np.random.default_rng(0), tokens).reshape(-1, arguments.tokens)
    figures: dict[str, object] = {"text": arguments.text, "responses": len(text_RT)}
    with tempfile.TemporaryDirectory() as folder:
        for measured in measure(text_RT, Path(folder), arguments.tree):
            figures |= measured
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
