"""The status of an endpoint, and the commands that act on it."""

import json
import os
import signal
from collections.abc import Iterator

import pytest

from outrider.common.errors import OutriderError
from outrider.common.process_tree import wait_until
from outrider.live.controller import read_state
from outrider.live.journal import Locked, holder, lock
from outrider.live.status import endpoint_status, status_lines
from tests.cli.commands import assert_one_message, run
from tests.live.rig import Rig
from tests.live.small_endpoint import SmallEndpoint


@pytest.fixture
def small() -> Iterator[SmallEndpoint]:
    with SmallEndpoint(stable=2) as endpoint:
        yield endpoint


def test_a_status_in_ten_lines_and_as_json(small: SmallEndpoint) -> None:
    before = endpoint_status(small.endpoint)
    assert before["serving"] is None and not before["problems"]
    with Rig(small) as control:
        control.deploy(small.bundles["better"])
        control.deploy(small.bundles["worse"])
    status = endpoint_status(small.endpoint)
    assert json.loads(json.dumps(status, allow_nan=False)) == status
    state = read_state(small.endpoint)
    assert (status["serving"], status["previous"]) == (state.serving, state.previous)
    assert status["everywhere"] and status["problems"] == []
    assert (status["promoted"], status["rolled_back"], status["refused"]) == (1, 1, 0)
    assert status["router"] == {"answers": True, "canary_percent": 33.33}
    assert len(status_lines(status)) <= 10


def test_a_status_names_what_is_not_as_it_should_be(small: SmallEndpoint) -> None:
    with Rig(small) as control:
        control.deploy(small.bundles["better"])
        small.test("/test/break", replica="stable0")
        small.test("/test/die", replica="stable1")
        small.test("/test/router", alive=False)
        with pytest.raises(OutriderError, match="stable0 drafts wrongly until it is started again"):
            control.deploy(small.bundles["worse"])
        control.journal.append("begin", new="a", old="b", mode="canary")
    status = endpoint_status(small.endpoint)
    assert not status["everywhere"] and status["replicas"]["stable0"]["release"] is None
    assert status["problems"] == [
        "stable1: no answer",
        "stable0 drafts wrongly (not restored): start the replica again, then run --recover",
        "a deployment was interrupted: run --recover",
    ]
    assert {"stable0: stable, broken", "stable1: stable, no answer", "router: no answer"} <= {
        *status_lines(status)
    }


def test_the_commands_on_an_endpoint(small: SmallEndpoint, tmp_path) -> None:
    with Rig(small) as control:
        control.deploy(small.bundles["better"])
    to = ("--endpoint", str(small.file()))
    told = run("deploy-speculator", "--status", *to, cwd=tmp_path)
    assert told.returncode == 0 and told.stdout.startswith("small: release ")
    told = run("deploy-speculator", "--status", "--json", *to, cwd=tmp_path)
    serving = json.loads(told.stdout)["serving"]
    told = run("deploy-speculator", "--rollback", *to, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    answer = json.loads(told.stdout.splitlines()[-1])
    assert (answer["replaced"], answer["by"]) == (serving, "operator")
    assert set(small.served().values()) == {"first"}
    small.test("/test/start", replica="canary")
    told = run("deploy-speculator", "--recover", *to, cwd=tmp_path)
    assert json.loads(told.stdout.splitlines()[-1])["everywhere"]
    told = run("deploy-speculator", "--promote", *to, cwd=tmp_path)
    assert_one_message(told, "no deployment is in progress")


def test_an_interrupted_deployment_is_promoted_or_taken_back(small: SmallEndpoint, tmp_path):
    to = ("--endpoint", str(small.file()))
    for word, reached in (("--promote", "better"), ("--rollback", "first")):
        small.restart()
        with Rig(small) as control:
            control.recover()
            old = control._adopted()
            new = control.releases.add(small.bundles["better"])
            control.journal.append("begin", new=new.name, old=old, mode="canary")
            seen = control.fleet.status("canary")
            control.fleet.swap("canary", seen, new, watched=False)
        told = run("deploy-speculator", word, *to, cwd=tmp_path)
        assert told.returncode == 0, told.stderr
        assert set(small.served().values()) == {reached}


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
def test_a_mistake_is_one_message(small: SmallEndpoint, tmp_path, words, part, status) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.resolved.yaml").touch()
    words = [*words, "--endpoint", str(small.file())]
    assert_one_message(run("deploy-speculator", *words, cwd=tmp_path), part, status=status)


def test_one_controller_at_a_time_and_a_request_reaches_it(small: SmallEndpoint, tmp_path) -> None:
    path = small.endpoint.lock
    assert holder(path) is None
    child = os.fork()
    if child == 0:
        try:
            with lock(path, "is deploying"):
                rig = Rig(small)
                rig.clock.requests = 0
                rig.clock.then = lambda now: wait_until(lambda: False, 0.02)
                with rig as control:
                    done = control.deploy(small.bundles["better"])
                os._exit(0 if (done.outcome, done.by) == ("rolled_back", "operator") else 1)
        finally:
            os._exit(1)
    try:
        assert wait_until(lambda: read_state(small.endpoint).open is not None, 20)
        assert holder(path) == child
        with (
            pytest.raises(Locked, match=f"process {child} is deploying"),
            lock(path, "is deploying"),
        ):
            pass
        to = ("--endpoint", str(small.file()))
        told = run("deploy-speculator", str(small.bundles["worse"]), *to, cwd=tmp_path)
        assert_one_message(told, f"process {child} is deploying to this endpoint")
        told = run("deploy-speculator", "--rollback", *to, cwd=tmp_path)
        assert told.returncode == 0, told.stderr
        assert json.loads(told.stdout.splitlines()[-1])["outcome"] == "rolled_back"
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        child = 0
    finally:
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert holder(path) is None
    assert set(small.served().values()) == {"first"}
