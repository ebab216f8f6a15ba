"""Today's controller, with a replica whose Outrider is another revision: HEAD^, or an older one.

    python -m pytest tests/live/test_older_replica.py -m slow      # a minute for each revision

During an upgrade, replicas have the Outrider that they were started with. The revision is checked
out as a worktree of git. Its replica is a process with its admin route, and a stand-in engine
(tests/serving/vllm_hooks/replica_process.py); a second replica has today's code.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from outrider.common.process_tree import Child
from outrider.live.controller import open_controller
from outrider.live.endpoint_file import Endpoint, load_endpoint
from outrider.live.fleet import replicas_of
from outrider.live.journal import Journal
from outrider.live.releases import release_name
from outrider.live.state import State
from outrider.live.status import endpoint_status, status_lines
from outrider.serving.admin.live_flags import live_environment
from outrider.serving.admin.replica import ReplicaUnreachable
from outrider.serving.bundle.bundle_digest import bundle_digest
from tests.live.releases import release

ROOT = Path(__file__).resolve().parents[2]
REPLICA = ROOT / "tests" / "serving" / "vllm_hooks" / "replica_process.py"

K = 3
BEFORE_DIGESTS_OF_STARTS = "f6628eab"
"""A revision whose replicas report no digest until their first swap."""

READY_S = 300
"""vLLM's modules take 10 to 40 s to import, and longer on a busy machine."""


def git(*words: str) -> str | None:
    """The output of a git command on this checkout; None if it fails."""
    done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else None


@pytest.fixture(params=["HEAD^", BEFORE_DIGESTS_OF_STARTS])
def older_package(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The package `outrider` of another revision, of links to its rooms."""
    revision = git("rev-parse", "--verify", "--quiet", f"{request.param}^{{commit}}")
    if revision is None:
        pytest.skip(f"{request.param}: no such revision here (no git, or a shallow clone)")
    tree = tmp_path / "tree"
    assert git("worktree", "add", "--detach", str(tree), revision) is not None
    try:
        yield link_rooms(tree, tmp_path / "packages")
    finally:
        git("worktree", "remove", "--force", str(tree))


def link_rooms(tree: Path, folder: Path) -> Path:
    """Links a checkout's rooms as subpackages of `outrider`, as requirements/mypy.sh does."""
    package = folder / "outrider"
    package.mkdir(parents=True)
    for room in tree.iterdir():
        if (
            room.is_dir()
            and next(room.glob("*.py"), None)
            and room.name not in ("outrider", "tests")
        ):
            (package / room.name).symlink_to(room)
    (package / "__init__.py").symlink_to(tree / "outrider" / "__init__.py")
    return package


class Replicas:
    """The processes of an endpoint's replicas, by name."""

    def __init__(self, endpoint: Endpoint, packages: dict[str, Path], target: Path) -> None:
        self.endpoint = endpoint
        self.packages = packages
        self.target = target
        self.children: dict[str, Child] = {}
        self.endpoint.admin_token()

    def start(self, name: str, bundle: Path) -> None:
        """Starts a replica with a bundle, and waits until it answers."""
        replica = next(replica for replica in self.endpoint.replicas if replica.name == name)
        package = self.packages[name]
        variables = live_environment(
            [self.endpoint.releases], replica.admin, self.endpoint.admin_token_file
        )
        child = Child(
            command=[sys.executable, str(REPLICA), str(bundle), str(self.target), str(package)],
            log=self.endpoint.state_dir / f"{name}.log",
            name=name,
            environment={**os.environ, **variables, "PYTHONPATH": str(package.parent)},
        )
        self.children[name] = child
        child.wait_until(lambda: self.answers(name), READY_S)

    def answers(self, name: str) -> bool:
        """True if the replica's admin route answers."""
        try:
            replicas_of(self.endpoint)[name].status()
        except ReplicaUnreachable:
            return False
        return True

    def end(self, name: str) -> None:
        """Ends a replica; its socket stays, as after a kill."""
        self.children.pop(name).stop()


@pytest.fixture
def replicas(
    older_package: Path, tmp_path: Path, nano_r1: Path
) -> Iterator[tuple[Replicas, dict[str, Path]]]:
    """A replica `older` and a replica `today` that serve bundle `first`, and all bundles."""
    bundles = {
        name: release(
            nano_r1,
            tmp_path / name,
            noise=noise,
            method="mtp",
            num_speculative_tokens=K,
            accepts=accepts,
            evidence={"acceptance_length": {"custom": 2.9}},
        )
        for name, noise, accepts in (("first", 0.0, 1), ("better", 0.1, 2), ("worse", 0.2, 0))
    }
    tree = {
        "state_dir": str(tmp_path / "s"),
        "replicas": [{"name": name, "data": f"unix:{name}.sock"} for name in ("older", "today")],
        "router": {"listen": "unix:front.sock"},
    }
    file = tmp_path / "endpoint.yaml"
    file.write_text(yaml.safe_dump(tree))
    today = link_rooms(ROOT, tmp_path / "today")
    fleet = Replicas(load_endpoint(file), {"older": older_package, "today": today}, nano_r1)
    try:
        for name in fleet.packages:
            fleet.start(name, bundles["first"])
        yield fleet, bundles
    finally:
        for name in list(fleet.children):
            fleet.end(name)


def assert_serves(endpoint: Endpoint, bundle: Path) -> None:
    """All replicas serve a bundle, and the status says so."""
    status = endpoint_status(endpoint)
    assert status["everywhere"] and status["problems"] == [], status_lines(status)
    assert status["serving"] == release_name(bundle_digest(bundle))


@pytest.mark.slow
def test_a_replica_of_another_revision_is_deployed_to_rolled_back_and_recovered(
    replicas: tuple[Replicas, dict[str, Path]],
) -> None:
    fleet, bundles = replicas
    endpoint = fleet.endpoint
    before = endpoint_status(endpoint)
    assert all(replica["answers"] for replica in before["replicas"].values()), before
    assert before["problems"] == []

    said: list[str] = []
    with open_controller(endpoint, said.append) as controller:
        controller.recover()
        promoted = controller.deploy(bundles["better"], in_place=True)
        assert (promoted.outcome, promoted.behind) == ("promoted", ()), said
        assert_serves(endpoint, bundles["better"])
        for replica in replicas_of(endpoint).values():
            requests, after = replica.requests(0)
            assert requests[-1].index == after - 1 and requests[-1].accepted == 2 * 20

        worse = controller.deploy(bundles["worse"], in_place=True)
        assert (worse.outcome, worse.verdict.by) == ("rolled_back", "watch"), said
        assert_serves(endpoint, bundles["better"])

        back = controller.roll_back()
        assert (back.outcome, back.behind) == ("promoted", ()), said
        assert_serves(endpoint, bundles["first"])
        controller.deploy(bundles["better"], in_place=True)

    # They come back with the speculator of their start, and `--recover` repairs that.
    for name in fleet.packages:
        fleet.end(name)
        fleet.start(name, bundles["first"])
        assert any("run --recover" in problem for problem in endpoint_status(endpoint)["problems"])
        with open_controller(endpoint, said.append) as controller:
            controller.recover()
        assert_serves(endpoint, bundles["better"])

    # A controller that was killed after its first swap.
    state = endpoint_status(endpoint)
    with Journal(endpoint.journal, State()) as journal:
        first = release_name(bundle_digest(bundles["first"]))
        journal.append("begin", new=first, old=state["serving"], mode="in_place")
    with open_controller(endpoint, said.append) as controller:
        controller.recover()
    assert_serves(endpoint, bundles["better"])
