"""`make live`: deploys good and bad speculators to a local live endpoint.

    python -m tools.live_demo

Trains a small speculator on the shipped traffic (without an evaluation), starts two replicas of the
embedded target and Envoy, sends the newest requests, and deploys three bundles: the trained one,
which is promoted; a copy with a changed byte, which is refused; and one with noise in its weights,
which the canary detects and rolls back. Then come faults: the controller is killed between its
verdict and the journal, and a replica starts again with other weights, while 20 clients send a byte
a second. The last line of stdout is one JSON object.
"""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import outrider
from outrider.common.errors import OutriderError
from outrider.common.process_tree import wait_until
from outrider.live.controller import deploy_bundle, open_controller
from outrider.live.endpoint_file import Endpoint, load_endpoint
from outrider.live.local import generate_load, local_endpoint, read_prompts
from outrider.live.releases import Releases
from outrider.live.state import State
from outrider.live.status import endpoint_status, status_lines
from tools.live_faults import killed_with_its_verdict, restarted_replica, slow_clients

K = 4
"""Drafts per step of all replicas."""

USERS = 4
"""Users who stream chats one after another."""

SLOW_CLIENTS = 20

REQUEST_S = 120.0
"""Seconds within which each user gets another answer after the last fault."""

RECIPE = (
    "name=live",
    "speculator.kind=mtp",
    f"speculator.depth={K}",
    "split.max_train_sequences=240",
    "split.max_validation_sequences=24",
    "split.max_heldout_sequences=200",
)
"""The résumé recipe with fewer sequences: two minutes of training suffice to beat the base."""

PROMISED = {"acceptance_length": {"custom": 1.5}}
"""Evidence of the trained bundle: a replica rolls back if its acceptance length is lower."""


def main() -> int:
    """Runs the demonstration; returns 0 if it went as expected."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} s  {text}", file=sys.stderr, flush=True)

    try:
        # A short path, because a socket's path has at most 107 bytes.
        with tempfile.TemporaryDirectory(prefix="outrider-live-") as folder:
            result = demonstrate(load_endpoint("nano_r1", Path(folder)), say)
    except OutriderError as error:
        print(f"live: {error}", file=sys.stderr)
        return error.exit_code
    print(json.dumps(result | {"seconds": round(time.monotonic() - began, 1)}), flush=True)
    return 0 if result["as_expected"] else 1


def demonstrate(endpoint: Endpoint, say: Callable[[str], None]) -> dict[str, Any]:
    """Trains, serves, deploys and causes faults; returns the JSON object."""
    good_bundle, changed, bad_bundle = demo_bundles()
    prompts = read_prompts("nano_r1/resume_screening")
    refused = False
    with (
        local_endpoint(endpoint, good_bundle, say),
        generate_load(endpoint, prompts, USERS) as sent,
        slow_clients(endpoint, SLOW_CLIENTS) as seconds_borne,
    ):
        good = deploy_bundle(good_bundle, endpoint, say=say)
        try:
            deploy_bundle(changed, endpoint, say=say)
        except OutriderError as error:
            refused = True
            say(f"refused: {error}")
        bad = deploy_bundle(bad_bundle, endpoint, say=say)
        killed = killed_with_its_verdict(bad_bundle, endpoint)
        say("the controller was killed before its verdict was in the journal")
        interrupted = recover(endpoint, say).last
        lost = sum(map(bool, sent))
        # Streams of this replica break off: what it had in flight cannot be repeated.
        say(f"killing {endpoint.stable[0].name}, and starting it with the weights of {bad.new}")
        other = Releases(endpoint.releases).get(bad.new)
        with restarted_replica(endpoint, endpoint.stable[0], other):
            broken_off = sum(map(bool, sent)) - lost
            recover(endpoint, say)
            status = endpoint_status(endpoint)
            answered = len(sent)
            wait_until(lambda: len(sent) >= answered + USERS, REQUEST_S)
            failures = [outcome for outcome in sent if outcome]
            lost = len(failures) - broken_off
    say("\n".join(status_lines(status) + failures[:5]))
    expected = {
        "good release promoted": good.outcome == "promoted",
        "changed bundle refused": refused,
        "bad release rolled back": bad.outcome == "rolled_back",
        "killed deployment rolled back": killed
        and interrupted is not None
        and interrupted.outcome == "rolled_back",
        "good release everywhere": status["everywhere"] and status["serving"] == good.new,
        "slow clients ended": len(seconds_borne) == SLOW_CLIENTS,
        "no request lost": lost == 0 and broken_off <= USERS,
    }
    return {
        "requests": len(sent),
        "failed_requests": lost,
        "broken_off_at_the_kill": broken_off,
        "slow_clients_ended_after_s": round(max(seconds_borne, default=0.0), 1),
        "expected": expected,
        "as_expected": all(expected.values()),
        "deployments": {"good": asdict(good), "bad": asdict(bad)},
    }


def recover(endpoint: Endpoint, say: Callable[[str], None]) -> State:
    """What `outrider deploy --recover` does; returns the state that it reaches."""
    with open_controller(endpoint, say) as controller:
        return controller.recover()


def demo_bundles() -> tuple[Path, Path, Path]:
    """Trains unless already done; writes the good, changed and bad bundles."""
    import torch
    from safetensors.torch import load_file, save_file

    from outrider.serving.bundle.bundle import export_bundle
    from outrider.serving.speculator import Drafting, Speculator

    opened = outrider.open("resume_screening", *RECIPE)
    opened.train("ingest,split,capture,train")
    recipe = opened.recipe
    run = opened.directory
    folder = run.root / "live"
    shutil.rmtree(folder, ignore_errors=True)
    noise = shutil.copytree(run.speculator, folder / "noise")
    weights = load_file(noise / "model.safetensors")
    generator = torch.Generator().manual_seed(0)
    for name, tensor in weights.items():
        if tensor.dim() > 1 and "embed_tokens" not in name and "shared_head" not in name:
            tensor += tensor.std() * torch.randn(tensor.shape, generator=generator)
    save_file(weights, noise / "model.safetensors", {"format": "pt"})
    good, changed, bad = (folder / name for name in ("good", "changed", "bad"))
    for speculator, evidence, out in ((run.speculator, PROMISED, good), (noise, {}, bad)):
        method = recipe.speculator.draft_sample_method
        drafting = Drafting(Speculator.from_name(speculator), K, method)
        export_bundle(
            drafting=drafting,
            target=recipe.target,
            engine=recipe.serving.engine,
            evidence=evidence,
            out_dir=out,
            other_formats=False,
        )
    content = bytearray((shutil.copytree(good, changed) / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (changed / "model.safetensors").write_bytes(content)
    return good, changed, bad


if __name__ == "__main__":
    sys.exit(main())
