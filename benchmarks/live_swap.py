"""What an exchange of the speculator costs a live server: failures, gaps, stalls, acceptance.

    train-speculator --recipe resume_screening.yaml name=kinds
    python -m benchmarks.live_swap runs/kinds --swaps 50 --streams 8

The server runs as in production: an API key, no development mode, prefix caching on. It exchanges
the target's own layer and RUN/bundle through the admin route, with each cache policy, while streams
of greedy requests are open. Acceptance is counted one request at a time before and after, and on a
server that was started with the bundle. At last a speculator of noise is swapped in with a watch.
"""

import argparse
import contextlib
import json
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from outrider.common.files import read_json, write_json
from outrider.data.on_policy.quarantine import load_parts
from outrider.data.sequences import load_sequences
from outrider.serving.admin.address import address_of
from outrider.serving.admin.live_flags import admin_token, live_environment
from outrider.serving.admin.replica import Cache, Replica, SwapResult, Watch
from outrider.serving.bundle.bundle_digest import MANIFEST, bundle_digest, listing
from outrider.serving.config import EngineConfig, ServingConfig, TargetConfig
from outrider.serving.server import Server
from outrider.speculators.kinds import trainable_kind_of

KEY, TOKEN = "benchmark", "admin.token"
TOKENS = 160
"""Longest response."""
BETWEEN_S = 1.0
"""Pause between two swaps. After a clearing swap every open request computes its prompt again."""


@dataclass
class Stream:
    """What one streamed request saw: the time of each delivery, by time.perf_counter."""

    times: list[float] = field(default_factory=list)
    prompt: int = 0
    text: str = ""
    error: str | None = None


def admin_of(folder: Path) -> str:
    """Address of the admin route."""
    return f"unix:{folder.resolve()}/admin.sock"


class Live:
    """A production-like server, with a client for each need."""

    def __init__(self, server: Server) -> None:
        self.model, self.address = server.model_name, address_of(server.url)
        folder = server.log_path.parent
        self.replica = Replica(admin_of(folder), server.url, admin_token(folder / TOKEN))

    def body(self, prompt: list[int]) -> dict[str, Any]:
        """A greedy request."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": TOKENS}
        return body | {"temperature": 0, "ignore_eos": True}

    def counted(self, prompts: list[list[int]]) -> tuple[list[str], dict[str, int]]:
        """Texts and counts, one request at a time."""
        texts, drafts, accepted = [], 0, 0
        for prompt in prompts:
            status, answer = self.address.call("POST", "/v1/completions", self.body(prompt), KEY)
            assert status == 200, answer
            texts.append(answer["choices"][0]["text"])
            counts = answer["metrics"]["speculative_decoding"]
            drafts += counts["num_spec_steps"]
            accepted += counts["num_accepted_draft_tokens"]
        return texts, {"drafts": drafts, "accepted": accepted}

    def stream(self, number: int, prompt: list[int]) -> Stream:
        """A streamed request."""
        seen = Stream(prompt=number)
        connection = self.address.connect(600)
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
        try:
            text = json.dumps(self.body(prompt) | {"stream": True})
            connection.request("POST", "/v1/completions", text, headers)
            response = connection.getresponse()
            finished = None
            while line := response.readline():
                if not line.startswith(b"data: {"):
                    continue
                (choice,) = json.loads(line[6:])["choices"]
                seen.times.append(time.perf_counter())
                seen.text += choice["text"]
                finished = choice["finish_reason"] or finished
            if response.status != 200 or finished != "length":
                seen.error = f"{response.status}, finish_reason {finished}"
        except Exception as error:  # a failed request is the result
            seen.error = repr(error)
        finally:
            connection.close()
        return seen

    def swap(self, folder: Path, cache: Cache, watch: Watch | None = None) -> SwapResult:
        """An exchange."""
        return self.replica.swap(folder, folder.name, bundle_digest(folder), cache, watch)


@contextlib.contextmanager
def live_server(
    target: TargetConfig, speculator: Path, k: int, root: Path, log: Path
) -> Iterator[Live]:
    """A server of the target as in production."""
    log.parent.mkdir(parents=True, exist_ok=True)
    engine = EngineConfig(max_num_seqs=8, kv_cache_gb=1.0, prefix_caching=True)
    server = Server(target, ServingConfig(engine=engine), speculator, k, log_path=log)
    server.command += ["--api-key", KEY]
    server._environment |= live_environment([root], admin_of(log.parent), log.parent / TOKEN)
    server._environment["VLLM_SERVER_DEV_MODE"] = "0"
    with server:
        yield Live(server)


def release(directory: Path, folder: Path, k: int, noise: bool = False) -> Path:
    """A release of a speculator's directory, or one of its form that drafts noise."""
    kind = trainable_kind_of(directory)
    tensors = {
        name: torch.randn_like(tensor.float()).to(tensor.dtype) * 0.05
        if noise and tensor.is_floating_point() and "norm" not in name
        else tensor.clone()
        for name, tensor in kind.exchanged(directory)
    }
    folder.mkdir(parents=True)
    shutil.copyfile(directory / "config.json", folder / "config.json")
    save_file(tensors, folder / "model.safetensors")
    write_json(folder / MANIFEST, listing(folder) | {"num_speculative_tokens": k})
    return folder


def under_load(
    live: Live, prompts: list[list[int]], streams: int, meanwhile: Callable[[], list[Any]]
) -> tuple[list[Stream], list[Any]]:
    """Streams that ask again and again while `meanwhile` runs, and what it returned."""
    stop, seen = threading.Event(), list[Stream]()

    def ask(first: int) -> None:
        number = first
        while not stop.is_set():
            seen.append(live.stream(number % len(prompts), prompts[number % len(prompts)]))
            number += streams

    threads = [threading.Thread(target=ask, args=(first,)) for first in range(streams)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    done = meanwhile()
    stop.set()
    for thread in threads:
        thread.join()
    return seen, done


def gap_ms(seen: list[Stream], spans: list[tuple[float, float]] | None = None) -> list[float]:
    """Silences of the streams in ms: all, or the longest that overlaps each of `spans`."""
    pairs = [pair for stream in seen for pair in zip(stream.times, stream.times[1:], strict=False)]
    if spans is None:
        return [1e3 * (b - a) for a, b in pairs]
    return [
        1e3 * max((b - a for a, b in pairs if a < end and b > start), default=0.0)
        for start, end in spans
    ]


def loaded(
    live: Live,
    prompts: list[list[int]],
    streams: int,
    swaps: int,
    folders: list[Path],
    cache: Cache | None,
    texts: list[str],
) -> dict[str, Any]:
    """`swaps` exchanges under load with a policy; None: as much load without any."""

    def exchange() -> list[tuple[float, float, SwapResult]]:
        done = []
        for index in range(swaps):
            time.sleep(BETWEEN_S)
            began = time.perf_counter()
            if cache is not None:
                result = live.swap(folders[index % 2], cache)
                done.append((began, time.perf_counter(), result))
        return done

    seen, done = under_load(live, prompts, streams, exchange)
    whole = [stream for stream in seen if stream.error is None]
    gaps = sorted(gap_ms(whole))
    row: dict[str, Any] = {
        "policy": cache or "no swaps",
        "swaps": len(done),
        "requests": len(seen),
        "failed": len(seen) - len(whole),
        "errors": [stream.error for stream in seen if stream.error],
        "same_text": sum(stream.text == texts[stream.prompt] for stream in whole),
        "gap_ms_median": statistics.median(gaps),
        "gap_ms_longest": gaps[-1],
    }
    if done:
        around = gap_ms(whole, [(began, ended) for began, ended, _ in done])
        results = [result for _, _, result in done]
        row |= {
            "gap_at_a_swap_ms_median": statistics.median(around),
            "gap_at_a_swap_ms_longest": max(around),
            **{
                f"{name}_ms_{word}": 1e3 * of([getattr(result, name) for result in results])
                for name in ("read_s", "apply_s", "stall_s")
                for word, of in (("median", statistics.median), ("longest", max))
            },
        }
    return row


def taken_back(live: Live, prompts: list[list[int]], noise: Path, floor: float) -> dict[str, Any]:
    """A speculator of noise under load: when the watch had seen enough, and when it was gone."""

    def watch() -> list[Any]:
        _, after = live.replica.requests(0)
        live.swap(noise, "keep", Watch(500, floor))
        while live.replica.status().reverted is None:
            time.sleep(0.005)
        gone = time.time()
        found, _ = live.replica.requests(after)
        own = [request for request in found if request.version == noise.name]
        return [len(own), gone - own[-1].finished_at]

    seen, (requests, seconds) = under_load(live, prompts, 8, watch)
    return {
        "requests": requests,
        "s_after_the_last": seconds,
        "failed": sum(stream.error is not None for stream in seen),
        "because": live.replica.status().reverted_because,
    }


def measure(run: Path, swaps: int, streams: int, requests: int) -> dict[str, Any]:
    """All of it."""
    target, bundle = TargetConfig(), run / "bundle"
    k = int(read_json(bundle / MANIFEST)["num_speculative_tokens"])
    heldout = load_parts(run / "split", run / "features")["heldout"]
    rows = load_sequences(run / "traffic" / "sequences", heldout)
    prompts = [list(row["token_ids"][: row["completion_start"]]) for row in rows][:requests]
    # An MTP drafter computes the last cached block (128 tokens on a CPU) again.
    long = [prompt * 4 for prompt in prompts[:6]]
    result: dict[str, Any] = {"k": k, "prompts": len(prompts), "streams": streams, "load": []}

    def count(name: str, live: Live, asked: list[list[int]] = prompts) -> list[str]:
        texts, result[name] = live.counted(asked)
        print(json.dumps({name: result[name]}), flush=True)
        return texts

    with tempfile.TemporaryDirectory(prefix="outrider-") as text:
        root = Path(text)
        base = release(target.directory(), root / "base", k)
        noise = release(target.directory(), root / "noise", k, noise=True)
        custom = root / "custom"
        shutil.copytree(bundle, custom)
        folder = run / "live_swap"
        with live_server(target, custom, k, root, folder / "fresh.log") as fresh:
            count("custom, fresh server", fresh)
            fresh_digest = fresh.replica.status().draft_digest
        with live_server(target, target.directory(), k, root, folder / "live.log") as live:
            texts = count("base, fresh server", live)
            own_digest = live.replica.status().draft_digest
            for name, directory in (("custom", custom), ("base", base)):
                live.swap(directory, "clear")
                count(f"{name}, swapped in", live)
                digest = live.replica.status().draft_digest
                assert digest == {"custom": fresh_digest, "base": own_digest}[name]
            live.counted(long)
            live.swap(custom, "keep")
            count("long prompts, custom, prefixes cached under base", live, long)
            live.swap(custom, "clear")
            count("long prompts, custom, empty cache", live, long)
            count("long prompts, custom, prefixes cached under custom", live, long)
            for policy in (None, "keep", "clear"):
                row = loaded(live, prompts, streams, swaps, [base, custom], policy, texts)
                result["load"].append(row)
                print(json.dumps(row), flush=True)
            live.swap(custom, "clear")
            count("custom, after all swaps", live)
            assert live.replica.status().draft_digest == fresh_digest
            counts = result["custom, fresh server"]
            floor = 1 + 0.9 * counts["accepted"] / counts["drafts"]
            result["taken_back"] = taken_back(live, prompts, noise, floor) | {"floor": floor}
            live.swap(custom, "clear")
            count("custom, after the watch", live)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="a finished run's directory, with its bundle")
    parser.add_argument("--swaps", type=int, default=50, help="swaps with each policy")
    parser.add_argument("--streams", type=int, default=8, help="open requests")
    parser.add_argument("--requests", type=int, default=24, help="different prompts")
    arguments = parser.parse_args()
    result = measure(arguments.run, arguments.swaps, arguments.streams, arguments.requests)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
