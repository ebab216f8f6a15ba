"""Endpoint status from journal, replicas and router, as text or JSON.

    status = endpoint_status(endpoint)
    print("\\n".join(status_lines(status)))

It is read-only and needs no lock, so it works during a deployment.
"""

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Literal, TypedDict, cast

from outrider.common.errors import OutriderError
from outrider.common.files import lock_holder
from outrider.live.endpoint_file import Endpoint
from outrider.live.fleet import replicas_of, served_by
from outrider.live.releases import Releases
from outrider.live.router import Router, RouterUnavailable
from outrider.live.state import Deployment, Figures, State, read_state
from outrider.serving.admin.replica import Replica


class SilentReplica(TypedDict):
    """A replica that does not answer."""

    answers: Literal[False]
    release: None
    error: str


class AnsweringReplica(TypedDict):
    """A replica's release, and the fields of its `ReplicaStatus`."""

    answers: Literal[True]
    release: str | None
    version: str | None
    digest: str
    k: int
    kind: str
    directory: str
    watching: bool
    reverted: str | None
    reverted_because: str | None
    broken: str | None


ReplicaReport = SilentReplica | AnsweringReplica


class VerdictReport(TypedDict):
    """The fields of `DeploymentVerdict`."""

    action: str
    reason: str
    by: str
    figures: Figures


class DeploymentReport(TypedDict):
    """The fields of `Deployment`."""

    id: int
    new: str
    old: str
    mode: str
    began_at: float
    swapped: list[str]
    request: VerdictReport | None
    verdict: VerdictReport
    ended_at: float | None
    outcome: str | None
    behind: list[str]


class EndpointStatus(TypedDict):
    """What the endpoint serves and what is being deployed."""

    endpoint: str
    serving: str | None
    previous: str | None
    everywhere: bool
    deployment: DeploymentReport | None
    controller: int | None
    """Process id."""
    replicas: dict[str, ReplicaReport]
    canary_percent: float | None
    last: DeploymentReport | None
    promoted: int
    rolled_back: int
    releases: list[str]
    problems: list[str]


def endpoint_status(endpoint: Endpoint) -> EndpointStatus:
    """Returns the status as JSON-serializable values."""
    state = read_state(endpoint)
    releases = Releases(endpoint.releases)
    replicas = {name: _replica(replica, state) for name, replica in replicas_of(endpoint).items()}
    share = _canary_share(endpoint)
    controller = lock_holder(
        endpoint.lock
    )  # its process id; the kernel frees the lock of a killed one
    everywhere = all(
        replica["answers"] and replica["release"] == state.serving for replica in replicas.values()
    )
    return {
        "endpoint": endpoint.name,
        "serving": state.serving,
        "previous": state.previous,
        "everywhere": everywhere,
        "deployment": _deployment(state.open),
        "controller": controller,
        "replicas": replicas,
        "canary_percent": share,
        "last": _deployment(state.last),
        "promoted": state.counts["promoted"],
        "rolled_back": state.counts["rolled_back"],
        "releases": [release.name for release in releases.all()],
        "problems": [
            *_replica_problems(state, replicas),
            *_controller_problems(state, share, controller),
        ],
    }


def status_lines(status: EndpointStatus) -> list[str]:
    """Formats the status as readable lines."""
    answers = any(replica["answers"] for replica in status["replicas"].values())
    if status["serving"] is None and status["canary_percent"] is None and not answers:
        return [
            f"{status['endpoint']}: nothing runs, neither a replica nor the router; `outrider"
            " deploy --local --endpoint FILE` starts them on this machine"
        ]
    lines = [
        f"{status['endpoint']}: release {status['serving'] or '(none deployed yet)'}"
        + (" everywhere" if status["everywhere"] else "")
        + (f"; before it {status['previous']}" if status["previous"] else "")
    ]
    deployment = status["deployment"]
    if deployment is not None:
        lines.append(
            f"deploying {deployment['new']} since {_time(deployment['began_at'])}, by process"
            f" {status['controller']}; {deployment['verdict']['reason'] or 'no verdict yet'}"
        )
    lines += [f"{name}: {_in_words(replica)}" for name, replica in status["replicas"].items()]
    share = status["canary_percent"]
    lines.append("router: " + ("no answer" if share is None else f"{share:g} % to the canary"))
    last = status["last"]
    if last is not None and last["outcome"] is not None and last["ended_at"] is not None:
        lines.append(
            f"last: {last['new']} {last['outcome'].replace('_', ' ')} at"
            f" {_time(last['ended_at'])} by the {last['verdict']['by']}:"
            f" {last['verdict']['reason']}"
        )
    return lines + [f"problem: {problem}" for problem in status["problems"]]


def _in_words(replica: ReplicaReport) -> str:
    if replica["answers"] is False:
        return "no answer"
    words = f"release {replica['release']}, {replica['kind']}, {replica['k']} drafts per step"
    if replica["watching"]:
        words += ", its acceptance is being watched"
    if replica["reverted"]:
        words += f", took {replica['reverted']} back"
    return words


def _canary_share(endpoint: Endpoint) -> float | None:
    """Percentage of requests that the router sends to the canary; None without an answer."""
    try:
        return Router(endpoint).share()
    except RouterUnavailable:
        return None


def _deployment(deployment: Deployment | None) -> DeploymentReport | None:
    if deployment is None:
        return None
    return cast(DeploymentReport, dataclasses.asdict(deployment))


def _replica(replica: Replica, state: State) -> ReplicaReport:
    try:
        status = replica.status()
    except OutriderError as error:
        return {"answers": False, "release": None, "error": str(error)}
    release = served_by(status, state)
    report = {"answers": True, "release": release, **dataclasses.asdict(status)}
    return cast(AnsweringReplica, report)


def _replica_problems(state: State, replicas: Mapping[str, ReplicaReport]) -> list[str]:
    problems = []
    for name, replica in replicas.items():
        release = replica["release"]
        if replica["answers"] is False:
            problems.append(f"{name}: no answer")
        elif replica["broken"]:
            problems.append(
                f"{name} drafts wrongly ({replica['broken']}): start the replica again, then run"
                " --recover"
            )
        elif state.open is None and state.serving not in (None, release):
            problems.append(f"{name} serves {release or replica['directory']}: run --recover")
    return problems


def _controller_problems(state: State, share: float | None, controller: int | None) -> list[str]:
    if state.open is not None:
        is_interrupted = controller is None
        return ["a deployment was interrupted: run --recover"] if is_interrupted else []
    if share is None or state.share is None or share == state.share:
        return []
    return [f"the canary gets {share:g} %, not {state.share:g} %: run --recover"]


def _time(unix: float) -> str:
    return datetime.datetime.fromtimestamp(unix).astimezone().isoformat(" ", "seconds")


def deployment_summary(endpoint: Endpoint, ended: Deployment) -> dict[str, object]:
    """The facts about a deployment that has ended, for scripts."""
    return {
        "endpoint": endpoint.name,
        "deployment": ended.id,
        "outcome": ended.outcome,
        "release": ended.new,
        "replaced": ended.old,
        "by": ended.verdict.by,
        "reason": ended.verdict.reason,
        "figures": ended.verdict.figures,
        "behind": list(ended.behind),
        "seconds": None if ended.ended_at is None else ended.ended_at - ended.began_at,
    }
