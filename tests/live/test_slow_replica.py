"""A canary's replica that is slower, on real servers: an equal release is promoted there."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from outrider.live import local
from outrider.live.controller import deploy_bundle
from outrider.live.endpoint_file import load_endpoint
from outrider.live.load import Load, read_prompts
from outrider.serving.bundle.bundle import export_bundle
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.speculator import Drafting, Speculator, served_base

K = 4


@pytest.mark.engine
@pytest.mark.slow
def test_an_equal_release_is_promoted_on_a_slower_replica(nano_r1, monkeypatch, tmp_path):
    core, command = min(os.sched_getaffinity(0)), local.replica_command

    def one_core(endpoint, replica, release):
        """Both replicas on one core, of which the canary's gets the smaller share."""
        words, environment = command(endpoint, replica, release)
        priority = "5" if replica.role == "canary" else "0"
        return ["taskset", "-c", str(core), "nice", "-n", priority, *words], environment

    monkeypatch.setattr(local, "replica_command", one_core)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {core})
    drafting = Drafting(Speculator.named(served_base(nano_r1, nano_r1, tmp_path)), K)
    engine = EngineConfig(max_model_len=2048, max_num_seqs=8, kv_cache_gb=0.5)
    target, equal = TargetConfig(model=str(nano_r1)), tmp_path / "bundle"
    export_bundle(drafting, target, engine, {"n": 1}, equal, other_formats=False)
    with TemporaryDirectory(prefix="outrider-") as folder:  # a socket's path is short
        state = Path(folder)
        endpoint = load_endpoint("nano_r1", state)
        policy = endpoint.policy.model_copy(update={"margin": 0.3, "shares": [100.0]})
        router = endpoint.router.model_copy(update={"listen": f"unix:{state}/front.sock"})
        endpoint = endpoint.model_copy(update={"policy": policy, "router": router})
        load = Load(endpoint, read_prompts("nano_r1/resume_screening"))
        with local.local_endpoint(endpoint, equal), load:
            done = deploy_bundle(equal, endpoint)
    assert not load.failures
    assert done.figures["replica"] < 0.9, "without a baseline it would have been rolled back"
    assert (done.outcome, done.by) == ("promoted", "judge"), done.reason
