"""Cost of the router, and requests lost when a canary is killed.

    python -m benchmarks.router [--requests 2000] [--kills 20] [--only cost stream kills]

Envoy in front of small replicas (tests/live/backend.py) on Unix sockets. `cost`: latency
of one request at a time, directly and through Envoy in alternating blocks, and Envoy's CPU time.
`stream`: gaps between events 20 ms apart, and CPU time per event. `kills`: eight clients (four
plain requests of 50 ms, four streams of ten events), half of the traffic on the canary, which is
killed with -9. Prints a line of JSON for each.
"""

import argparse
import itertools
import json
import random
import statistics
import time
from collections import Counter

import psutil

from outrider.live.router import Router
from outrider.serving.admin.address import Address
from tests.live.fleet import Answer, Fleet, Load, counts, healthy, wait_for

BLOCK = 100
WARM_UP = 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--only", nargs="+", default=["cost", "stream", "kills"])
    args = parser.parse_args()
    if "cost" in args.only:
        show("cost", cost(args.requests))
    if "stream" in args.only:
        show("stream", stream(10))
    if "kills" in args.only:
        show("kills", kills(args.kills))


def cost(count: int) -> dict[str, object]:
    """Milliseconds of a request, one at a time over a connection that stays open."""
    body = json.dumps({"prompt": "word " * 400})
    with Fleet() as fleet, Router(fleet.endpoint) as router:
        assert router.process is not None
        ways = {
            "direct": Address(path=str(fleet.socket("a"))).connect(60),
            "envoy": Address.parse(fleet.endpoint.router.listen).connect(60),
        }
        times: dict[str, list[float]] = {way: [] for way in ways}
        envoy = psutil.Process(router.process.pid)
        used = 0.0
        for block in range(-1, 2 * count // BLOCK):
            way = "direct" if block % 2 else "envoy"
            before = sum(envoy.cpu_times()[:2])
            for _ in range(BLOCK if block >= 0 else WARM_UP):
                began = time.perf_counter()
                ways[way].request("POST", "/v1/completions", body)
                response = ways[way].getresponse()
                response.read()
                if block >= 0:
                    assert response.status == 200
                    times[way].append(1e3 * (time.perf_counter() - began))
            if way == "envoy" and block >= 0:
                used += sum(envoy.cpu_times()[:2]) - before
        resident = envoy.memory_info().rss / 2**20
    found: dict[str, object] = {
        way: {"median_ms": round(statistics.median(each), 3), "p99_ms": round(p99(each), 3)}
        for way, each in times.items()
    }
    # Blocks are the unit: requests in a block share the machine's noise.
    added = [
        statistics.median(times["envoy"][at : at + BLOCK])
        - statistics.median(times["direct"][at : at + BLOCK])
        for at in range(0, count, BLOCK)
    ]
    generator = random.Random(0)
    means = sorted(statistics.mean(generator.choices(added, k=len(added))) for _ in range(2000))
    return found | {
        "requests": count,
        "added_ms": round(statistics.mean(added), 3),
        "added_ms_95": [round(means[50], 3), round(means[-51], 3)],
        "envoy_cpu_ms_per_request": round(1e3 * used / count, 3),
        "envoy_resident_mb": round(resident),
    }


def stream(streams: int, events: int = 100) -> dict[str, object]:
    """Gaps between the events of a stream."""
    with Fleet() as fleet, Router(fleet.endpoint) as router:
        assert router.process is not None
        envoy = psutil.Process(router.process.pid)
        gaps: dict[str, list[float]] = {"direct": [], "envoy": []}
        used = 0.0
        for index in range(2 * streams):
            way = "envoy" if index % 2 else "direct"
            address = (
                Address.parse(fleet.endpoint.router.listen)
                if way == "envoy"
                else Address(path=str(fleet.socket("a")))
            )
            connection = address.connect(60)
            before = sum(envoy.cpu_times()[:2])
            connection.request("POST", "/v1/completions", json.dumps({"stream": events}))
            response = connection.getresponse()
            at = []
            while line := response.readline():
                if line.startswith(b"data: "):
                    at.append(time.perf_counter())
            connection.close()
            assert len(at) == events + 1
            gaps[way] += [1e3 * (b - a) for a, b in itertools.pairwise(at[:-1])]
            if way == "envoy":
                used += sum(envoy.cpu_times()[:2]) - before
    found: dict[str, object] = {
        way: {"median_gap_ms": round(statistics.median(each), 2), "p99_gap_ms": round(p99(each), 2)}
        for way, each in gaps.items()
    }
    return found | {
        "events": streams * events,
        "envoy_cpu_ms_per_event": round(1e3 * used / (streams * events), 3),
    }


def kills(count: int) -> dict[str, object]:
    """What eight clients got while their canary was killed, over `count` kills."""
    answers: list[Answer] = []
    retries = streams_broken = fallen_back = 0
    slowest = 0.0
    with Fleet() as fleet, Router(fleet.endpoint) as router:
        router.set_canary_share(50)
        retried = counts(router, "canary")["upstream_rq_retry"]
        _, offset = router.requests(0)
        for _ in range(count):
            with Load(fleet, [{"seconds": 0.05}] * 4 + [{"stream": 10}] * 4) as load:
                load.more(30)
                fleet.kill("c")
                load.more(40)
            answers += load.answers
            fleet.launch("c")
            fleet.await_replica("c")
            wait_for(lambda: healthy(router, "canary") == 1)
        time.sleep(0.5)  # the log is written every 0.1 s
        finished, _ = router.requests(offset)
        retries = counts(router, "canary")["upstream_rq_retry"] - retried
        streams_broken = sum(not answer.complete for answer in answers)
        fallen_back = sum(each.routed_to == "canary" != each.cluster for each in finished)
        slowest = max(each.ttfb_ms or 0.0 for each in finished if each.routed_to == "canary")
    return {
        "kills": count,
        "requests": len(answers),
        "failed_before_their_first_byte": sum(answer.status != 200 for answer in answers),
        "streams_that_had_begun_and_broke": streams_broken,
        "served_by": dict(Counter(answer.name for answer in answers if answer.complete)),
        "retries": retries,
        "answered_by_stable_instead": fallen_back,
        "longest_time_to_first_byte_ms": round(slowest),
    }


def p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


def show(check: str, facts: dict[str, object]) -> None:
    print(json.dumps({"check": check} | facts), flush=True)


if __name__ == "__main__":
    main()
