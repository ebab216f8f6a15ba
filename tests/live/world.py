"""A simulated endpoint: replicas, router and time are objects of this process.

    def test_a_better_release_is_promoted(world):          # a fixture of conftest.py
        with world.controller() as controller:
            controller.deploy(world.bundles["better"])
        assert world.served() == dict.fromkeys(world.replicas, "better")

A release's acceptance is the number in its weights: b"3.5" drafts that many tokens per step. Time
costs nothing: sleeping brings `requests` requests.

A process is killed by `Killed` at one of its points (before or after anything that changes
something outside of the process, and in the middle of a line of the journal): from then on, nothing
that it still does has an effect.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from outrider.common.errors import OutriderError
from outrider.live.controller import Controller
from outrider.live.endpoint_file import Endpoint
from outrider.live.journal import Journal
from outrider.live.router import RouterUnavailable
from outrider.live.state import Deployment, State
from outrider.serving.admin.replica import (
    LiveRequest,
    ReplicaStatus,
    ReplicaUnreachable,
    SwapFailed,
    SwapOrder,
    SwapRefused,
    SwapResult,
)
from outrider.serving.bundle.bundle_digest import bundle_digest
from tests.serving.exported import write_exported

TOKENS = 64


class Killed(BaseException):
    """As if the process had ended here."""


class SimulatedReplica:
    """What one server keeps in memory; the methods of `Replica`."""

    def __init__(self, world: "World", name: str) -> None:
        self.world, self.name = world, name
        self.fault = ""
        """Of the next swap: die_before, die_after, refuse or fail_after."""
        self.slowness = 1.0
        """Factor on the time of a step."""
        self.start(world.bundles["first"])

    def start(self, directory: Path) -> None:
        """Starts the server, with this speculator."""
        self.alive, self.sick, self.hangs = True, False, False
        self.now = ReplicaStatus(
            version=None,
            digest=bundle_digest(directory),
            k=3,
            kind="mtp",
            directory=str(directory),
        )
        self.before = self.now
        self.watch = None
        self.finished: list[LiveRequest] = []

    def answers(self) -> None:
        if not self.alive:
            raise ReplicaUnreachable(f"{self.name}: no answer")
        if self.sick:
            raise OutriderError(f"{self.name}: the engine is dead")

    def status(self) -> ReplicaStatus:
        self.answers()
        return self.now

    def requests(self, after: int) -> tuple[list[LiveRequest], int]:
        self.answers()
        return self.finished[after:], len(self.finished)

    def swap(self, order: SwapOrder) -> SwapResult:
        self.world.point()
        fault = self.fault
        self.fault = ""
        self.alive &= fault != "die_before"
        self.answers()
        if fault == "refuse" or order.expected != self.now.digest:
            raise SwapRefused("refused on purpose")
        assert bundle_digest(Path(order.directory)) == order.digest
        self.before = self.now
        self.watch = order.watch
        self.now = ReplicaStatus(
            version=order.version,
            digest=order.digest,
            k=3,
            kind="mtp",
            directory=order.directory,
            watching=order.watch is not None,
        )
        self.world.point()
        self.alive &= fault != "die_after"
        self.answers()
        if fault == "fail_after":  # it was swapped, but the answer does not show it
            raise SwapFailed("failed on purpose")
        return SwapResult(read_s=0.1, stall_s=0.02)

    def answer(self, request_id: str, at: float) -> None:
        """Answers a request."""
        length = float((Path(self.now.directory) / "model.safetensors").read_bytes())
        drafts = round(TOKENS / length)
        index = len(self.finished)
        decode_s = self.slowness * drafts * 0.01 * (0.8 + 0.1 * (index * 2 % 5))
        self.finished.append(
            LiveRequest(
                index=index,
                request_id=f"cmpl-{request_id}",
                version=self.now.version,
                finished_at=at,
                completion_tokens=TOKENS,
                drafts=drafts,
                accepted=TOKENS - drafts,
                ttft_s=0.05,
                decode_s=decode_s,
                e2e_s=0.1,
                failed=False,
            )
        )
        if self.watch is None:
            return
        left = self.watch.requests - 1
        if length < self.watch.min_tokens_per_step:
            reverted = {"reverted": self.now.version, "reverted_because": f"accepts {length}"}
            self.now = dataclasses.replace(self.before, **reverted)
            left = 0
        self.watch = self.watch.model_copy(update={"requests": left}) if left else None
        self.now = dataclasses.replace(self.now, watching=left > 0)


class World:
    """The endpoint, and three bundles: `first` serves, `better` and `worse`. Also its clock."""

    def __init__(self, folder: Path, stable: int = 1, **policy: Any) -> None:
        self.folder = folder
        replicas = [
            {
                "name": name,
                "role": name.rstrip("0123456789"),
                "data": f"unix:/{name}",
                "admin": f"unix:/{name}.admin",
            }
            for name in ("canary", *(f"stable{i}" for i in range(stable)))
        ]
        self.endpoint = Endpoint(
            name="small",
            state_dir=folder / "state",
            replicas=replicas,
            policy={"shares": [100], "baseline_requests": 6, "min_requests": 4, "min_seconds": 1}
            | policy,
        )
        self.bundles = {
            name: write_exported(folder / name / "bundle", weights=weights, evidence={})
            for name, weights in (("first", b"2.0"), ("better", b"3.0"), ("worse", b"1.5"))
        }
        self.then: Callable[[float], None] = lambda now: None
        """Called after every sleep."""
        self.restart()

    def restart(self) -> None:
        """Everything from the beginning."""
        shutil.rmtree(self.endpoint.state_dir, ignore_errors=True)
        self.endpoint.state_dir.mkdir(mode=0o700)
        self.replicas = {
            replica.name: SimulatedReplica(self, replica.name) for replica in self.endpoint.replicas
        }
        self.percent, self.router_alive, self.sent = 0.0, True, 0
        self.now, self.requests = 1000.0, 8
        self.points = 0
        self.fatal = -1
        self.dead = False

    @contextlib.contextmanager
    def controller(self) -> Iterator[Controller]:
        """One start of the controller."""
        with WorldJournal(self) as self.journal:
            yield Controller(self.endpoint, self.journal, lambda line: None, self)

    def deploy(
        self,
        bundle: str,
        in_place: bool = False,
        then: Callable[[float], None] = lambda now: None,
        requests: int = 8,
    ) -> Deployment:
        """One start of the controller that deploys a bundle during such traffic."""
        self.then, self.requests = then, requests
        with self.controller() as controller:
            return controller.deploy(self.bundles[bundle], in_place)

    def recover(self) -> None:
        """One start of the controller after the disturbance of `then`."""
        self.then = lambda now: None
        with self.controller() as controller:
            controller.recover()

    def events(self, event: str) -> list[dict[str, Any]]:
        """What the journal of the last controller has of an event."""
        return [entry.facts for entry in self.journal.entries if entry.event == event]

    def ask(self, action: str) -> None:
        """What `--rollback` or `--promote` of another process does."""
        with Journal(self.endpoint.journal, State(), clock=self.time) as journal:
            opened = journal.read().open
            journal.append("request", deployment=opened.id, action=action, by="tester")

    def at(self, admin: str) -> SimulatedReplica:
        """The replica with this admin address."""
        name = next(replica.name for replica in self.endpoint.replicas if replica.admin == admin)
        return self.replicas[name]

    def point(self) -> None:
        """A place where the process may be killed."""
        if self.points == self.fatal:
            self.dead = True
        if self.dead:
            raise Killed
        self.points += 1

    def time(self) -> float:
        return self.now

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += max(seconds, 1.0)
        self.traffic(self.requests)
        self.then(self.now)

    # The methods of `Router`.

    def share(self) -> float:
        if not self.router_alive:
            raise RouterUnavailable("no answer")
        return self.percent

    def set_canary_share(self, percent: float) -> None:
        self.share()
        self.point()
        self.percent = percent
        self.point()

    def traffic(self, requests: int) -> None:
        """Requests, shared out as it is set."""
        rows = []
        for _ in range(requests if self.router_alive else 0):
            self.sent += 1
            # Evenly, so that every share is met by few requests.
            role = "canary" if (self.sent * self.percent) % 100 < self.percent else "stable"
            alive = [r for r in self.endpoint.replicas if self.replicas[r.name].alive]
            peers = [replica for replica in alive if replica.role == role] or alive
            chosen = peers[self.sent % len(peers)]
            if self.replicas[chosen.name].hangs:
                continue
            request_id = str(uuid.UUID(int=self.sent))
            self.replicas[chosen.name].answer(request_id, self.now)
            rows.append(
                {
                    "started_at": self.now - 0.5,
                    "cluster": role,
                    "host": chosen.name,
                    "status": 200,
                    "flags": "-",
                    "duration_ms": 500,
                    "request_id": request_id,
                    "session": f"session {self.sent}",
                }
            )
        with self.endpoint.access_log.open("a") as log:
            log.writelines(json.dumps(row) + "\n" for row in rows)

    def bundle(self, name: str, weights: bytes, promised: float | None = None) -> str:
        """The name of a further bundle, whose evidence is an acceptance length."""
        self.bundles[name] = write_exported(
            self.folder / name / "bundle",
            weights=weights,
            evidence={"acceptance_length": {"custom": promised}},
        )
        return name

    def served(self) -> dict[str, str]:
        """What each replica that is alive serves, by the name of the bundle."""
        digests = {bundle_digest(path): name for name, path in self.bundles.items()}
        return {
            name: digests[bundle_digest(Path(replica.now.directory))]
            for name, replica in self.replicas.items()
            if replica.alive
        }

    def everywhere(self, bundle: str) -> bool:
        """Whether all replicas serve a bundle and have an equal load."""
        fair = round(100 / len(self.replicas), 2)
        return self.served() == dict.fromkeys(self.replicas, bundle) and self.percent == fair

    def file(self) -> str:
        """The endpoint's file."""
        path = self.folder / "small.yaml"
        path.write_text(yaml.safe_dump(self.endpoint.model_dump(mode="json")))
        return str(path)


def killed_around(point: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with a point before and after it."""

    def between_points(*arguments: Any, **named: Any) -> Any:
        point()
        result = function(*arguments, **named)
        point()
        return result

    return between_points


class WorldJournal(Journal[State]):
    """A journal whose writer may be killed."""

    def __init__(self, world: World) -> None:
        self.world = world
        super().__init__(world.endpoint.journal, State(), clock=world.time)
        self.append = killed_around(world.point, self.append)

    def _write(self, line: bytes) -> None:
        os.pwrite(self._file, line[: len(line) // 2], self._end)
        self.world.point()
        super()._write(line)
