"""The status of an endpoint, and the commands that act on it."""

import json
import threading
from typing import Any

import pytest

import outrider
from outrider.common.errors import OutriderError
from outrider.common.files import lock, lock_holder
from outrider.common.process_tree import wait_until
from outrider.live.state import read_state
from outrider.live.status import endpoint_status, status_lines
from outrider.pipeline.run_dir import RunDirectory
from tests.cli.commands import Finished, assert_one_message, json_line, run


def deploy(world, *words) -> Finished:
    """The command on the world's endpoint."""
    return run("outrider", "deploy", *words, "--endpoint", world.file(), cwd=world.folder)


def answer(world, *words) -> dict[str, Any]:
    """The last line of the command, which succeeds."""
    return json_line(deploy(world, *words))


def test_a_status_names_what_is_not_as_it_should_be(world) -> None:
    with world.controller() as controller:
        controller.deploy(world.bundles["better"])
        object.__setattr__(world.replicas["stable0"].now, "broken", "not restored")
        world.replicas["stable1"].alive = world.router_alive = False
        with pytest.raises(OutriderError, match="stable0 drafts wrongly until it is started again"):
            controller.deploy(world.bundles["worse"])
        world.journal.append("begin", new="a", old="b", mode="canary")
    status = endpoint_status(world.endpoint)
    assert not status["everywhere"] and status["replicas"]["stable0"]["release"] is None
    assert status["problems"] == [
        "stable0 drafts wrongly (not restored): start the replica again, then run --recover",
        "stable1: no answer",
        "a deployment was interrupted: run --recover",
    ]
    assert {"stable1: no answer", "router: no answer"} <= {*status_lines(status)}


def test_where_nothing_runs_the_status_names_the_start(world) -> None:
    for replica in world.replicas.values():
        replica.alive = False
    world.router_alive = False
    shown = deploy(world, "--status")
    assert shown.returncode == 1
    (line,) = shown.stdout.splitlines()
    assert "nothing runs" in line and "`outrider deploy --local --endpoint FILE`" in line
    assert not endpoint_status(world.endpoint)["everywhere"]


def test_the_commands_on_an_endpoint(world) -> None:
    assert endpoint_status(world.endpoint)["serving"] is None
    world.deploy("better")
    world.deploy("worse")
    shown = deploy(world, "--status")
    assert shown.returncode == 0 and shown.stdout.startswith("small: release ")
    status = endpoint_status(world.endpoint)
    assert (status["promoted"], status["rolled_back"], status["canary_percent"]) == (1, 1, 33.33)
    assert status["everywhere"] and status["problems"] == []
    serving = read_state(world.endpoint).serving
    back = answer(world, "--rollback")
    assert (back["replaced"], back["by"]) == (serving, "operator")
    assert world.everywhere("first")
    world.replicas["canary"].start(world.bundles["first"])
    assert answer(world, "--recover")["everywhere"]
    assert_one_message(deploy(world, "--promote"), "no deployment is in progress")


def test_the_same_from_python(world, tmp_path) -> None:
    ended = outrider.deploy(world.bundles["better"], endpoint=world.file(), in_place=True)
    assert (ended["outcome"], ended["behind"]) == ("promoted", [])
    assert world.everywhere("better")
    status = outrider.deploy(endpoint=world.file(), status=True)
    assert json.loads(json.dumps(status)) == answer(world, "--status", "--json")
    assert outrider.deploy(endpoint=world.file(), rollback=True)["by"] == "operator"
    assert world.everywhere("first")
    assert outrider.deploy(endpoint=world.file(), recover=True)["everywhere"]
    with pytest.raises(outrider.OutriderError, match="no deployment is in progress"):
        outrider.deploy(endpoint=world.file(), promote=True)
    (tmp_path / "recipe.resolved.yaml").touch()
    with pytest.raises(outrider.OutriderError, match="this run has no bundle"):
        outrider.deploy(RunDirectory(tmp_path), endpoint=world.file())
    with pytest.raises(outrider.OutriderError, match="--rollback takes no bundle"):
        outrider.deploy("bundle", endpoint=world.file(), rollback=True)
    with pytest.raises(outrider.OutriderError, match="no bundle: give a run directory"):
        outrider.deploy(endpoint=world.file())


@pytest.mark.parametrize(("word", "reached"), [("--promote", "better"), ("--rollback", "first")])
def test_an_interrupted_deployment_is_promoted_or_taken_back(world, word, reached):
    with world.controller() as controller:
        old = controller.adopt_release()
        new = controller.releases.add(world.bundles["better"])
        world.journal.append("begin", new=new.name, old=old, mode="canary")
        controller.fleet.swap("canary", world.replicas["canary"].now, new, watched=False)
    assert deploy(world, word).returncode == 0
    assert world.everywhere(reached)


@pytest.mark.parametrize(
    ("words", "part", "status"),
    [
        ([], "no bundle: give a run directory", 2),
        (["--status", "--rollback"], "--status and --rollback: give one of them", 2),
        (["bundle", "--rollback"], "--rollback takes no bundle", 2),
        (["bundle", "--load", "x"], "--load needs --local", 2),
        (["nowhere"], "nowhere: no such folder", 1),
        (["run"], "run: this run has no bundle; `outrider export run --to DIR`", 1),
    ],
)
def test_a_mistake_is_one_message(world, tmp_path, words, part, status) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.resolved.yaml").touch()
    assert_one_message(deploy(world, *words), part, status=status)


def test_one_controller_at_a_time_and_a_request_reaches_it(world) -> None:
    path = world.endpoint.lock
    done = []
    world.requests = 0
    world.then = lambda now: threading.Event().wait(0.02)

    def other_controller() -> None:
        with lock(path, "is deploying"), world.controller() as controller:
            done.append(controller.deploy(world.bundles["better"]))

    thread = threading.Thread(target=other_controller)
    thread.start()
    assert wait_until(lambda: read_state(world.endpoint).open is not None, 20)
    assert_one_message(
        deploy(world, str(world.bundles["worse"])),
        f"process {lock_holder(path)} is deploying to this endpoint",
    )
    assert answer(world, "--rollback")["outcome"] == "rolled_back"
    thread.join()
    assert (done[0].outcome, done[0].verdict.by) == ("rolled_back", "operator")
    assert lock_holder(path) is None and world.everywhere("first")
