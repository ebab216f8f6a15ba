"""`make live`: a live endpoint on this machine, from the base speculator to a better one and back.

    python -m outrider.live.demo

Trains a small speculator on the shipped traffic (ingest, split, capture, train: without an
evaluation), starts two replicas of the embedded target and Envoy, sends the held-out requests, and
deploys three bundles: the trained one, which is promoted; a copy with a changed byte, which is
refused; and one with noise in its weights, which the canary finds and rolls back. The last line of
stdout is one JSON object.
"""

import argparse
import contextlib
import dataclasses
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.common.errors import OutriderError
from outrider.live.demo_bundles import demo_bundles
from outrider.live.deploy import deploy_bundle, read_state
from outrider.live.endpoint_file import Endpoint, load_endpoint
from outrider.live.load import Load
from outrider.live.local import local_endpoint
from outrider.live.status import endpoint_status, status_lines

if TYPE_CHECKING:
    from outrider.live.state import Deployment

USERS = 4


def main(arguments: list[str] | None = None) -> int:
    """Runs the demonstration; 0 where everything went as it should."""
    parser = argparse.ArgumentParser(description="Deploys to a live endpoint on this machine.")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the run is kept")
    options = parser.parse_args(arguments)
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", file=sys.stderr, flush=True)

    try:
        with state_dir() as folder:
            result = demonstrate(options.runs, load_endpoint("nano_r1", folder), say)
    except OutriderError as error:
        print(f"live: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(result | {"seconds": round(time.monotonic() - began, 1)}), flush=True)
    return 0 if result["as_expected"] else 1


def demonstrate(runs: Path, endpoint: Endpoint, say: Any) -> dict[str, Any]:
    """Trains, serves, deploys; the JSON object's values."""
    bundles = demo_bundles(runs, say)
    with (
        local_endpoint(endpoint, bundles.good, say),
        Load(endpoint, bundles.requests, USERS, bundles.model) as load,
    ):
        good = deploy_bundle(bundles.good, endpoint, say=say)
        say(f"{load.result().requests} requests, {load.result().failed} failed")
        refused = _refused(bundles.changed, endpoint, say)
        bad = deploy_bundle(bundles.bad, endpoint, say=say)
        for line in status_lines(endpoint_status(endpoint)):
            say(line)
        load.stop()
        seen = load.result()
    for failure in seen.first_failures:
        say(failure)
    state = read_state(endpoint)
    return {
        "requests": seen.requests,
        "failed_requests": seen.failed,
        "promoted": state.promoted,
        "rolled_back": state.rolled_back,
        "refused": state.refused,
        "longest_gap_ms": round(seen.longest_gap_ms, 1),
        "as_expected": (good.outcome, bad.outcome, refused, seen.failed)
        == ("promoted", "rolled_back", True, 0),
        "deployments": {"good": _facts(good), "bad": _facts(bad)},
        "p50_gap_ms": round(seen.median_gap_ms, 1),
    }


def _refused(bundle: Path, endpoint: Endpoint, say: Any) -> bool:
    try:
        deploy_bundle(bundle, endpoint, say=say)
    except OutriderError as error:
        say(f"refused: {error}")
        return True
    return False


def _facts(deployment: "Deployment") -> dict[str, Any]:
    assert deployment.decided_at is not None and deployment.ended_at is not None
    return {
        "outcome": deployment.outcome,
        "by": deployment.by,
        "reason": deployment.reason,
        "decided_in_s": round(deployment.decided_at - deployment.began_at, 1),
        "done_after_verdict_s": round(deployment.ended_at - deployment.decided_at, 1),
        "figures": dataclasses.asdict(deployment)["figures"],
    }


@contextlib.contextmanager
def state_dir() -> Iterator[Path]:
    """A new folder with a short path, because a socket's path has at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="outrider-live-"))
    try:
        yield folder
    finally:
        for path in (folder, *folder.rglob("*")):  # releases are read-only
            if path.is_dir():
                path.chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
