"""Replicas that differ in speed, on real servers: the baseline takes the difference out."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from outrider.live import local
from outrider.live.controller import deploy_bundle
from outrider.live.endpoint_file import load_endpoint
from outrider.serving.bundle.bundle import export_bundle
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.hooked import SWAP_EXTENSION
from outrider.serving.speculator import Drafting, Speculator, served_directory
from tests.eval.slow_drafter import SLOW_DRAFTER_EXTENSION, SLOW_START
from tests.live.releases import release

K = 4


@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_a_faster_replica_promotes_no_slower_release(nano_r1, monkeypatch, tmp_path):
    command = local.replica_command

    def planted(endpoint, replica, release):
        """The stable replica sleeps in every step."""
        words, environment = command(endpoint, replica, release)
        words = [SLOW_DRAFTER_EXTENSION if word == SWAP_EXTENSION else word for word in words]
        environment["PYTHONPATH"] = str(Path(__file__).parents[2])
        return words, environment | ({SLOW_START: "1"} if replica.role == "stable" else {})

    monkeypatch.setattr(local, "replica_command", planted)
    engine = EngineConfig(max_model_len=1024, max_num_seqs=8, kv_cache_gb=0.5)
    target = TargetConfig(model=str(nano_r1))
    speculators = {
        "equal": served_directory(nano_r1, nano_r1, tmp_path),
        "worse": release(nano_r1, tmp_path / "noise", noise=1.0),
    }
    for name, directory in speculators.items():
        drafting = Drafting(Speculator.from_name(directory), K)
        export_bundle(
            drafting=drafting,
            target=target,
            engine=engine,
            evidence={},
            out_dir=tmp_path / name,
            other_formats=False,
        )
    prompts = [body | {"max_tokens": 48} for body in local.read_prompts("nano_r1/resume_screening")]
    with TemporaryDirectory(prefix="outrider-") as folder:  # a socket's path is short
        state = Path(folder)
        endpoint = load_endpoint("nano_r1", state)
        limits = {"margin": 0.3, "shares": [100.0], "baseline_requests": 160}
        policy = endpoint.policy.model_copy(update=limits)
        router = endpoint.router.model_copy(update={"listen": f"unix:{state}/front.sock"})
        endpoint = endpoint.model_copy(update={"policy": policy, "router": router})
        with (
            local.local_endpoint(endpoint, tmp_path / "equal"),
            local.generate_load(endpoint, prompts) as outcomes,
        ):
            equal = deploy_bundle(tmp_path / "equal", endpoint, say=print)
            worse = deploy_bundle(tmp_path / "worse", endpoint, say=print)
    assert not any(outcomes)
    assert equal.verdict.figures["replica"] > 1.3, "nothing was planted"
    assert (equal.outcome, equal.verdict.by) == ("promoted", "judge"), equal.verdict
    assert (worse.outcome, worse.verdict.by) == ("rolled_back", "judge"), worse.verdict
    # As measured, the worse release is fast enough: only its replica is.
    speed, *_ = worse.verdict.figures["speed"]
    assert speed * worse.verdict.figures["replica"] > 1 - policy.margin
