"""What an endpoint serves: its journal, its replicas and its router, in about ten lines or as JSON.

    status = endpoint_status(endpoint)
    print("\\n".join(status_lines(status)))

Reads only, and needs no lock, so it works while a deployment goes on.
"""

import datetime
from collections.abc import Mapping
from typing import Any

from outrider.common.errors import OutriderError
from outrider.live.control import controller
from outrider.live.deploy import journal_path, read_state, replicas_of
from outrider.live.endpoint_file import Endpoint
from outrider.live.fleet import known_directories, served_by
from outrider.live.journal import read_journal
from outrider.live.releases import Releases
from outrider.live.router import Router
from outrider.live.state import Deployment, State
from outrider.serving.admin.replica import Replica


def endpoint_status(endpoint: Endpoint) -> dict[str, Any]:
    """Everything that is known, as values for JSON."""
    state = read_state(endpoint)
    directories = known_directories(state, Releases(endpoint.releases))
    found = {
        name: _replica(replica, directories) for name, replica in replicas_of(endpoint).items()
    }
    try:
        share: float | None = Router(endpoint).share()
    except OutriderError:
        share = None
    roles = {each.name: each.role for each in endpoint.replicas}
    return {
        "endpoint": endpoint.name,
        "serving": state.serving,
        "previous": state.previous,
        "everywhere": all(each["release"] == state.serving for each in found.values()),
        "deployment": _deployment(state.open),
        "controller": controller(endpoint.state_dir),
        "replicas": {name: {"role": roles[name]} | each for name, each in found.items()},
        "router": {"answers": share is not None, "canary_percent": share},
        "last": _deployment(state.last),
        "promoted": state.promoted,
        "rolled_back": state.rolled_back,
        "refused": state.refused,
        "releases": [each.name for each in Releases(endpoint.releases).all()],
        "journal": {
            "path": str(journal_path(endpoint)),
            "entries": len(read_journal(journal_path(endpoint))),
        },
        "problems": _problems(state, found, share, endpoint),
    }


def status_lines(status: Mapping[str, Any]) -> list[str]:
    """The status for a person, in ten lines or so: replicas that are alike share one."""
    lines = [
        f"{status['endpoint']}: release {status['serving'] or '(none deployed yet)'}"
        + (" everywhere" if status["everywhere"] else "")
        + (f"; before it {status['previous']}" if status["previous"] else "")
    ]
    if (going := status["deployment"]) is not None:
        verdict = f"; verdict {going['verdict']}: {going['reason']}" if going["verdict"] else ""
        pid = status["controller"]
        by = f"process {pid}" if pid is not None else "nobody is at it: run --recover"
        lines.append(f"deploying {going['new']} since {_time(going['began_at'])} ({by}){verdict}")
    groups: dict[str, list[str]] = {}
    for name, each in status["replicas"].items():
        groups.setdefault(_in_words(each), []).append(name)
    lines += [f"{', '.join(names)}: {words}" for words, names in list(groups.items())[:5]]
    router = status["router"]
    lines.append(
        f"router: {router['canary_percent']:g} % to the canary"
        if router["answers"]
        else "router: no answer"
    )
    if (last := status["last"]) is not None:
        lines.append(
            f"last: {last['new']} {last['outcome'].replace('_', ' ')} at"
            f" {_time(last['ended_at'])} by the {last['by']}: {last['reason']}"
        )
    counts = ", ".join(f"{status[k]} {k.replace('_', ' ')}" for k in _COUNTS)
    lines.append(f"so far: {counts}; {len(status['releases'])} releases kept")
    return lines + [f"problem: {problem}" for problem in status["problems"]]


_COUNTS = ("promoted", "rolled_back", "refused")


def _replica(replica: Replica, directories: Mapping[str, str]) -> dict[str, Any]:
    try:
        status = replica.status()
    except OutriderError as error:
        return {"answers": False, "release": None, "error": str(error)}
    return {
        "answers": True,
        "release": served_by(status, directories),
        "kind": status.kind,
        "k": status.k,
        "swaps": status.swaps,
        "watching": status.watching,
        "reverted": status.reverted,
        "broken": status.broken,
        "directory": status.directory,
        "draft_digest": status.draft_digest,
    }


def _deployment(deployment: Deployment | None) -> dict[str, Any] | None:
    if deployment is None:
        return None
    names = ("id", "new", "old", "mode", "began_at", "verdict", "reason", "by", "decided_at")
    values = {name: getattr(deployment, name) for name in (*names, "ended_at", "outcome")}
    return values | {"behind": list(deployment.behind), "figures": deployment.figures}


def _problems(
    state: State, replicas: Mapping[str, dict[str, Any]], share: float | None, endpoint: Endpoint
) -> list[str]:
    found = [f"{name}: no answer" for name, each in replicas.items() if not each["answers"]]
    broken = {name: each["broken"] for name, each in replicas.items() if each.get("broken")}
    found += [
        f"{name} drafts wrongly ({why}): start the replica again, then run --recover"
        for name, why in broken.items()
    ]
    if state.open is None and state.serving is not None:
        found += [
            f"{name} serves {each['release'] or each['directory']}: run --recover"
            for name, each in replicas.items()
            if each["answers"] and name not in broken and each["release"] != state.serving
        ]
        if share is not None and state.share is not None and share != state.share:
            found.append(f"the canary gets {share:g} %, not {state.share:g} %: run --recover")
    if state.open is not None and controller(endpoint.state_dir) is None:
        found.append("a deployment was interrupted: run --recover")
    return found


def _in_words(replica: Mapping[str, Any]) -> str:
    if not replica["answers"]:
        return f"{replica['role']}, no answer"
    if replica["broken"]:
        return f"{replica['role']}, broken"
    release = replica["release"] or f"no known release ({replica['directory']})"
    words = f"{replica['role']}, {release}, {replica['kind']}, {replica['k']} drafts per step"
    if replica["watching"]:
        words += ", its acceptance is being watched"
    if replica["reverted"]:
        words += f", took {replica['reverted']} back"
    return words


def _time(unix: float) -> str:
    moment = datetime.datetime.fromtimestamp(unix).astimezone()
    return moment.isoformat(sep=" ", timespec="seconds")
