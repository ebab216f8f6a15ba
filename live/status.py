"""Endpoint status from journal, replicas and router, as text or JSON.

    status = endpoint_status(endpoint)
    print("\\n".join(status_lines(status)))

It is read-only and needs no lock, so it works during a deployment.
"""

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.files import holder
from outrider.live.endpoint_file import Endpoint
from outrider.live.fleet import replicas_of, served_by
from outrider.live.journal import read_state
from outrider.live.releases import Releases
from outrider.live.router import Router, RouterUnavailable
from outrider.live.state import State
from outrider.serving.admin.replica import Replica


def endpoint_status(endpoint: Endpoint) -> dict[str, Any]:
    """Returns the status as JSON-serializable values."""
    state = read_state(endpoint)
    releases = Releases(endpoint.releases)
    found = {
        name: _replica(replica, state, releases) for name, replica in replicas_of(endpoint).items()
    }
    try:
        share: float | None = Router(endpoint).share()
    except RouterUnavailable:
        share = None
    controller = holder(endpoint.lock)
    return {
        "endpoint": endpoint.name,
        "serving": state.serving,
        "previous": state.previous,
        "everywhere": all(
            each["answers"] and each["release"] == state.serving for each in found.values()
        ),
        "deployment": dataclasses.asdict(state.open) if state.open is not None else None,
        "controller": controller,
        "replicas": found,
        "canary_percent": share,
        "last": dataclasses.asdict(state.last) if state.last is not None else None,
        "promoted": state.counts["promoted"],
        "rolled_back": state.counts["rolled_back"],
        "releases": [each.name for each in releases.all()],
        "problems": _problems(state, found, share, controller),
    }


def status_lines(status: Mapping[str, Any]) -> list[str]:
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
    if (going := status["deployment"]) is not None:
        lines.append(
            f"deploying {going['new']} since {_time(going['began_at'])}, by process"
            f" {status['controller']}; {going['verdict']['reason'] or 'no verdict yet'}"
        )
    for name, each in status["replicas"].items():
        words = "no answer"
        if each["answers"]:
            words = f"release {each['release']}, {each['kind']}, {each['k']} drafts per step"
        if each.get("watching"):
            words += ", its acceptance is being watched"
        if each.get("reverted"):
            words += f", took {each['reverted']} back"
        lines.append(f"{name}: {words}")
    share = status["canary_percent"]
    lines.append("router: " + ("no answer" if share is None else f"{share:g} % to the canary"))
    if (last := status["last"]) is not None:
        lines.append(
            f"last: {last['new']} {last['outcome'].replace('_', ' ')} at"
            f" {_time(last['ended_at'])} by the {last['verdict']['by']}:"
            f" {last['verdict']['reason']}"
        )
    return lines + [f"problem: {problem}" for problem in status["problems"]]


def _replica(replica: Replica, state: State, releases: Releases) -> dict[str, Any]:
    try:
        status = replica.status()
    except OutriderError as error:
        return {"answers": False, "release": None, "error": str(error)}
    return {
        "answers": True,
        "release": served_by(status, state, releases),
        **dataclasses.asdict(status),
    }


def _problems(
    state: State,
    replicas: Mapping[str, dict[str, Any]],
    share: float | None,
    controller: int | None,
) -> list[str]:
    found = []
    for name, each in replicas.items():
        if not each["answers"]:
            found.append(f"{name}: no answer")
        elif each["broken"]:
            found.append(
                f"{name} drafts wrongly ({each['broken']}): start the replica again, then run"
                " --recover"
            )
        elif state.open is None and state.serving not in (None, each["release"]):
            found.append(f"{name} serves {each['release'] or each['directory']}: run --recover")
    if state.open is not None and controller is None:
        found.append("a deployment was interrupted: run --recover")
    elif state.open is None and None not in (share, state.share) and share != state.share:
        found.append(f"the canary gets {share:g} %, not {state.share:g} %: run --recover")
    return found


def _time(unix: float) -> str:
    return datetime.datetime.fromtimestamp(unix).astimezone().isoformat(" ", "seconds")
