"""What an endpoint serves: its journal, its replicas and its router, in about ten lines or as JSON.

    status = endpoint_status(endpoint)
    print("\\n".join(status_lines(status)))

Reads only, and needs no lock, so it works during a deployment.
"""

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any

from outrider.common.errors import OutriderError
from outrider.live.controller import read_state
from outrider.live.endpoint_file import Endpoint
from outrider.live.fleet import replicas_of, served_by
from outrider.live.journal import holder
from outrider.live.releases import Releases
from outrider.live.router import Router
from outrider.live.state import State, as_json
from outrider.serving.admin.replica import Replica


def endpoint_status(endpoint: Endpoint) -> dict[str, Any]:
    """Everything that is known, as values for JSON."""
    state, releases = read_state(endpoint), Releases(endpoint.releases)
    found = {
        each.name: {"role": each.role} | _replica(replicas_of(endpoint)[each.name], state, releases)
        for each in endpoint.replicas
    }
    try:
        share: float | None = Router(endpoint).share()
    except OutriderError:
        share = None
    controller = holder(endpoint.lock)
    return {
        "endpoint": endpoint.name,
        "serving": state.serving,
        "previous": state.previous,
        "everywhere": all(each["release"] == state.serving for each in found.values()),
        "deployment": as_json(state.open) if state.open is not None else None,
        "controller": controller,
        "replicas": found,
        "router": {"answers": share is not None, "canary_percent": share},
        "last": as_json(state.last) if state.last is not None else None,
        **{name: state.counts[name] for name in _COUNTS},
        "releases": [each.name for each in releases.all()],
        "journal": {"path": str(endpoint.journal), "entries": state.entries},
        "problems": _problems(state, found, share, controller),
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
        by = f"process {pid}" if pid is not None else "no controller: run --recover"
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


def _replica(replica: Replica, state: State, releases: Releases) -> dict[str, Any]:
    try:
        status = replica.status()
    except OutriderError as error:
        return {"answers": False, "release": None, "error": str(error)}
    release = served_by(status, state, releases)
    return {"answers": True, "release": release, **dataclasses.asdict(status)}


def _problems(
    state: State,
    replicas: Mapping[str, dict[str, Any]],
    share: float | None,
    controller: int | None,
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
    if state.open is not None and controller is None:
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
