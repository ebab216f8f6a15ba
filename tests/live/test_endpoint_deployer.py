"""adapt-speculator's view of an endpoint, on the controller and small real servers."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider.live import deployer as endpoint_deployer
from outrider.live.controller import read_state
from outrider.live.deployer import BASE, EndpointDeployer
from outrider.live.journal import lock
from outrider.live.releases import Releases
from outrider.serving.admin.replica import ReplicaUnreachable
from tests.cli.commands import assert_one_message, run
from tests.live.bundles import write_bundle
from tests.live.rig import Rig
from tests.live.small_endpoint import SmallEndpoint


@pytest.fixture
def small(monkeypatch) -> Iterator[SmallEndpoint]:
    """Deployments are judged by the rig, whose clock does not wait."""

    @contextlib.contextmanager
    def controlled(endpoint, say, metrics):
        with lock(endpoint.lock, "is deploying to this endpoint"), Rig(small) as control:
            yield control

    with SmallEndpoint(stable=1) as small:
        monkeypatch.setattr(endpoint_deployer, "controlled", controlled)
        yield small


def test_a_promoted_bundle_serves_and_is_not_deployed_twice(small):
    deployer, bundle = EndpointDeployer(small.endpoint), small.bundles["better"]
    assert deployer.deploy(bundle) == "promoted"
    serving = deployer.serving()
    release = Releases(small.endpoint.releases).get(serving.name)
    assert (serving.directory, serving.k) == (release.directory, 3)
    assert set(small.served().values()) == {"better"}
    done = read_state(small.endpoint)
    # As after a kill before the outcome was recorded.
    assert deployer.deploy(bundle) == "promoted" and read_state(small.endpoint) == done


def test_a_bundle_that_does_not_fit_is_refused(small, tmp_path):
    deployer = EndpointDeployer(small.endpoint)
    deployer.deploy(small.bundles["better"])
    wide = write_bundle(tmp_path / "wide", b"9", k=5)
    assert deployer.deploy(wide) == "refused"
    assert deployer.serving().k == 3


def test_an_endpoint_that_does_not_answer_is_an_error(small, tmp_path):
    deployer = EndpointDeployer(small.endpoint)
    deployer.deploy(small.bundles["better"])
    small.test("/test/die", replica="stable0")
    small.test("/test/die", replica="canary")
    with pytest.raises(ReplicaUnreachable):
        deployer.deploy(write_bundle(tmp_path / "fine", b"4.5"))
    assert read_state(small.endpoint).counts["refused"] == 0


def test_another_deployment_is_waited_for(small):
    held = lock(small.endpoint.lock, "is deploying to this endpoint")
    held.__enter__()
    waited: list[float] = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        held.__exit__(None, None, None)

    said: list[str] = []
    deployer = EndpointDeployer(small.endpoint, said.append, wait)
    assert deployer.deploy(Path(small.bundles["better"])) == "promoted"
    assert len(waited) == 1 and any("is deploying to this endpoint" in text for text in said)


def test_the_command_without_new_traffic(small, tmp_path):
    (tmp_path / "log.jsonl").write_text("{}\n")
    words = [
        "--recipe",
        "resume_screening",
        "traffic.path=log.jsonl",
        "--endpoint",
        str(small.file()),
    ]
    done = run("adapt-speculator", *words, "--once", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["windows"], found["rounds"], found["serving"]) == (0, 0, BASE)
    assert (small.endpoint.state_dir / "journal.jsonl").is_file()
    wrong = run("adapt-speculator", *words, "--rounds", "0", cwd=tmp_path)
    assert_one_message(wrong, "--rounds 0: give 1 or more", status=2)
