"""A replica whose engine is a stand-in, with the admin route of the Outrider on PYTHONPATH.

    OUTRIDER_ADMIN=unix:a.admin.sock ... python replica_process.py SPECULATOR TARGET PACKAGE

A request ends every 10 ms. A release's acceptance is the key `accepts` of its bundle.json: drafts
accepted of 3 in each step. It only uses what all revisions have: `AdminRoute` and its variables.
"""

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stand_in_engine import Engine  # next to this script

REQUEST_S = 0.01
STEPS = 20


def finished(engine: Engine, index: int) -> Any:
    """A request that ended now, as vLLM's output processor has it."""
    manifest = json.loads((Path(engine.directory) / "bundle.json").read_text())
    histogram = [0, 0, 0, 0]
    histogram[manifest["accepts"]] = STEPS
    now = time.monotonic()
    stats = SimpleNamespace(
        arrival_time=time.time(),
        num_generation_tokens=STEPS * (1 + manifest["accepts"]),
        first_token_ts=now - 0.005,
        last_token_ts=now,
        first_token_latency=0.001,
    )
    return SimpleNamespace(
        external_req_id=f"cmpl-{index}",
        stats=stats,
        spec_decode_metrics=SimpleNamespace(histogram=histogram),
    )


async def serve(speculator: Path, target: Path) -> None:
    """Answers on the admin route until the process is ended."""
    from outrider.serving.vllm_hooks.admin_route import AdminRoute

    engine = Engine(speculator, target)
    engine.output_processor._update_stats_from_finished = lambda *_: None
    route = AdminRoute()
    await route.init_state(engine, None, argparse.Namespace())
    index = 0
    while True:
        engine.output_processor._update_stats_from_finished(finished(engine, index), "stop")
        index += 1
        await asyncio.sleep(REQUEST_S)


def main() -> None:
    """Serves a speculator, if `outrider` is the package that was meant."""
    import outrider

    speculator, target, package = map(Path, sys.argv[1:])
    assert Path(outrider.__file__).parent == package, outrider.__file__
    asyncio.run(serve(speculator, target))


if __name__ == "__main__":
    main()
