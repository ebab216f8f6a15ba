"""The admin route of a real server: swaps, refusals, faults, watch, requests in flight."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.serving.admin.address import Address
from outrider.serving.admin.live_flags import admin_token
from outrider.serving.admin.replica import (
    REQUESTS,
    ROUTE,
    Replica,
    ReplicaStatus,
    SwapFailed,
    SwapOrder,
    SwapRefused,
    SwapResult,
    Watch,
)
from outrider.serving.bundle.bundle_digest import bundle_digest
from outrider.serving.client import Completion, Sampling, SpeculationCounters, complete
from outrider.serving.server import Server
from outrider.speculators.kinds.mtp.kind import MTP
from tests.live.faults import FAULT
from tests.live.releases import release

pytestmark = pytest.mark.engine

TOKENS = 40
NOISE = 3.0
"""Added to the projection, relative to its spread: hardly a draft is accepted."""


@pytest.fixture(scope="module")
def replica(server: Server) -> Replica:
    folder = server.log_path.parent
    return Replica(f"unix:{folder}/admin.sock", admin_token(folder / "admin.token"))


@pytest.fixture(scope="module")
def releases(short_r1: Path, release_root: Path, k: int) -> dict[str, Path]:
    """The server's own speculator as a release, and one that hardly drafts anything right."""
    folder = release_root / "module"
    return {
        name: release(short_r1, folder / name, noise, num_speculative_tokens=k)
        for name, noise in (("base", 0.0), ("noise", NOISE))
    }


def swap(replica: Replica, folder: Path, watch: Watch | None = None) -> SwapResult:
    digest = bundle_digest(folder)
    return replica.swap(
        SwapOrder(directory=str(folder), version=folder.name, digest=digest, watch=watch)
    )


@pytest.fixture(autouse=True)
def base_afterwards(server: Server, short_r1: Path) -> Iterator[None]:
    yield
    server.swap(short_r1)


def answered(
    server: Server, prompts: list[list[int]], tokens: int = TOKENS
) -> tuple[list[list[int]], SpeculationCounters]:
    """Greedy texts, one request at a time, and the counts of their drafts."""
    before = server.counters()
    done: list[Completion] = complete(
        url=server.url,
        model=server.model_name,
        prompts=prompts,
        sampling=Sampling(temperature=0),
        max_tokens=tokens,
        concurrency=1,
    )
    return [each.token_ids for each in done], server.counters() - before


def test_an_exchange_and_one_back_leave_the_counts_and_the_weights_of_a_fresh_server(
    server, replica, releases, prompts, k
):
    before = replica.status()
    texts, base = answered(server, prompts[:3])
    result = swap(replica, releases["noise"])
    during = replica.status()
    other_texts, noise = answered(server, prompts[:3])
    swap(replica, releases["base"])
    after = replica.status()
    texts_again, again = answered(server, prompts[:3])

    assert texts == other_texts == texts_again
    assert again == base != noise and noise.accepted_tokens < 0.5 * base.accepted_tokens
    assert (after.version, before.digest) == ("base", "")
    assert result.stall_s > 0
    assert during == ReplicaStatus(
        version="noise",
        digest=bundle_digest(releases["noise"]),
        k=k,
        kind="mtp",
        directory=str(releases["noise"]),
    )


def test_after_a_fault_at_any_tensor_the_old_speculator_drafts_as_before(
    server, replica, releases, prompts, short_r1
):
    swap(replica, releases["base"])
    before = replica.status()
    texts, base = answered(server, prompts[:1])
    tensors = len(list(MTP().swap_tensors(short_r1)))
    for after in range(tensors + 1):
        server._rpc("next_load_fails_after", {"tensors": after})
        with pytest.raises(SwapRefused, match=f"stays in use: {FAULT}"):
            swap(replica, releases["noise"])
        assert replica.status() == before, f"after {after} of {tensors} tensors"
        if after % 8 == 0:
            assert answered(server, prompts[:1]) == (texts, base)
    assert answered(server, prompts[:1]) == (texts, base)
    swap(replica, releases["noise"])
    assert replica.status().version == "noise"


def test_a_swap_that_does_not_hold_is_taken_back_by_itself(server, replica, releases, prompts):
    swap(replica, releases["base"])
    before = replica.status()
    texts, base = answered(server, prompts[:2])
    predicted = 1 + 0.8 * base.accepted_tokens / base.drafts
    swap(replica, releases["noise"], Watch(requests=200, min_tokens_per_step=predicted))
    server._rpc("next_load_fails_after", {"tensors": 3})
    with pytest.raises(SwapRefused, match=FAULT):
        swap(replica, releases["base"])
    assert replica.status().watching, "a refused swap ends no watch"
    sent = 0
    while (status := replica.status()).version == "noise":
        answered(server, prompts[sent % len(prompts) :][:1], 16)
        sent += 1
        assert sent < 60, "the watch never takes the speculator back"
    assert (status.version, status.reverted, status.watching) == ("base", "noise", False)
    assert "the evidence predicts at least" in (status.reverted_because or "")
    assert status.digest == before.digest
    assert answered(server, prompts[:2]) == (texts, base)

    swap(replica, releases["base"], Watch(requests=4, min_tokens_per_step=predicted))
    answered(server, prompts[:5], 16)
    status = replica.status()
    assert (status.version, status.watching, status.reverted) == ("base", False, None)


def test_a_request_in_flight_keeps_its_text(server, replica, releases, prompts):
    (reference,), _ = answered(server, prompts[:1], 120)
    _, after = replica.requests(0)
    texts: list[list[list[int]]] = []
    stream = threading.Thread(
        target=lambda: texts.extend(answered(server, prompts[:1], 120)[0] for _ in range(2))
    )
    stream.start()
    swaps = 0
    while stream.is_alive():
        swap(replica, releases[("noise", "base")[swaps % 2]])
        swaps += 1
        time.sleep(0.2)  # else the engine does little but swap: 215 s for 480 tokens
    stream.join()
    assert swaps > 2 and texts == [[reference], [reference]]
    found, _ = replica.requests(after)
    assert any(request.mixed and request.version is None for request in found)


def test_a_failed_restore_and_a_failed_take_back_are_visible_until_an_exchange_succeeds(
    server, replica, releases, prompts
):
    swap(replica, releases["base"])
    before = replica.status()
    texts, base = answered(server, prompts[:1])
    server._rpc("next_load_fails_after", {"tensors": 3, "times": 2})
    with pytest.raises(SwapFailed, match="could not be loaded again"):
        swap(replica, releases["noise"])
    broken = replica.status()
    assert FAULT in (broken.broken or "") and broken.version == before.version
    assert replica.admin.call("GET", ROUTE, None, replica._token)[0] == 503
    server._rpc("next_load_fails_after", {"tensors": 3})
    with pytest.raises(SwapFailed, match=FAULT):  # restored now, but nothing proves it
        swap(replica, releases["noise"])
    assert replica.status().broken
    assert answered(server, prompts[:1])[0] == texts, "the target decides on the text"
    swap(replica, releases["base"])
    assert replica.status().broken is None
    assert answered(server, prompts[:1]) == (texts, base)

    predicted = 1 + 0.8 * base.accepted_tokens / base.drafts
    swap(replica, releases["noise"], Watch(requests=200, min_tokens_per_step=predicted))
    server._rpc("next_load_fails_after", {"tensors": 3})
    while not (status := replica.status()).broken:
        assert status.version == "noise", "taken back, although the load failed"
        answered(server, prompts[:1], 16)
    assert (status.watching, status.reverted) == (False, None)
    swap(replica, releases["base"])


def test_only_the_token_opens_the_route_which_customers_do_not_reach(server, replica):
    path = Path(replica.admin.path or "")
    assert path.stat().st_mode & 0o777 == 0o600
    for token in (None, "", "another", replica._token + "x"):
        for method, route in (("GET", ROUTE), ("POST", ROUTE), ("GET", "/docs"), ("GET", "/")):
            assert replica.admin.call(method, route, {}, token)[0] == 401, (method, route, token)
    customers = Address.parse(server.url)
    for method, route in (("GET", ROUTE), ("POST", ROUTE), ("GET", REQUESTS)):
        assert customers.call(method, route, {}, replica._token)[0] == 404
