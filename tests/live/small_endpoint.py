"""An endpoint of small real servers: the admin routes of replicas and of Envoy on Unix sockets.

    with SmallEndpoint(stable=1) as small:
        small.test("/test/traffic", at=100.0, requests=4)     # requests, shared out as it is set
        small.test("/test/die", replica="canary")             # gone, as after kill -9

One process of its own, which keeps its state when a controller is killed. Bundles are checked as
the real route checks them; a release's acceptance is the number in its weights: b"3.5" drafts that
many tokens per step.
"""

import dataclasses
import json
import os
import shutil
import signal
import socketserver
import tempfile
import threading
import urllib.parse
import uuid
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import yaml

from outrider.common.errors import OutriderError
from outrider.common.process_tree import wait_until
from outrider.live.endpoint_file import Endpoint
from outrider.live.router import POOLS
from outrider.serving.admin.address import Address
from outrider.serving.admin.replica import LiveRequest, ReplicaStatus, Watch
from outrider.serving.bundle.bundle_digest import bundle_digest
from tests.live.bundles import write_bundle

COMPLETION = 64


class SmallReplica:
    """What one server keeps in memory."""

    def __init__(self, name: str, started_with: Path) -> None:
        self.name, self.started_with = name, started_with
        self.fault = ""
        self.start()

    def start(self) -> None:
        self.alive, self.sick, self.hangs = True, False, False
        self.unanswered = 0
        self.status = ReplicaStatus(None, "", k=3, kind="mtp", directory=str(self.started_with))
        self.before = self.status
        self.watch: Watch | None = None
        self.finished: list[LiveRequest] = []

    def tokens_per_step(self) -> float:
        return float((Path(self.status.directory) / "model.safetensors").read_bytes())

    def swap(self, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        fault, self.fault = self.fault, ""
        if fault == "die_before":
            self.alive = False
        if fault == "refuse":
            return 409, {"error": "refused on purpose"}
        if fault == "break":
            self.status = dataclasses.replace(self.status, broken="neither could be loaded")
            return 500, {"error": "failed on purpose"}
        if fault == "fail_after":  # it was swapped, but the answer does not show it
            self.swap(body)
            return 500, {"error": "failed on purpose"}
        if body["expected"] != self.status.digest:
            return 409, {"error": f"drafts with {self.status.digest}"}
        directory = Path(body["directory"])
        try:
            if bundle_digest(directory) != body["digest"]:
                return 409, {"error": "another digest"}
        except OutriderError as error:
            return 409, {"error": str(error)}
        self.before = self.status
        self.status = dataclasses.replace(
            self.status,
            version=body["version"],
            digest=body["digest"],
            directory=str(directory),
            watching=body["watch"] is not None,
            reverted=None,
            reverted_because=None,
            broken=None,
        )
        self.watch = Watch(**body["watch"]) if body["watch"] else None
        if fault == "die_after":
            self.alive = False
        return 200, {"version": body["version"], "read_s": 0.1, "apply_s": 0.02, "stall_s": 0.02}

    def finish(self, request_id: str, at: float) -> None:
        acceptance = self.tokens_per_step()
        drafts = round(COMPLETION / acceptance)
        index = len(self.finished)
        self.finished.append(
            LiveRequest(
                index,
                f"cmpl-{request_id}",
                self.status.version,
                finished_at=at,
                completion_tokens=COMPLETION,
                drafts=drafts,
                accepted=COMPLETION - drafts,
                ttft_s=0.05,
                decode_s=drafts * 0.01 * (0.8 + 0.1 * (index * 2 % 5)),
                e2e_s=0.1,
                failed=False,
            )
        )
        if self.watch is not None and acceptance < self.watch.min_tokens_per_step:
            self.status = dataclasses.replace(
                self.before,
                reverted=self.status.version,
                reverted_because=f"{acceptance} tokens per step",
            )
            self.watch = None
        elif self.watch is not None:
            left = self.watch.requests - 1
            self.watch = (
                Watch.model_construct(**dict(self.watch) | {"requests": left}) if left else None
            )
            self.status = dataclasses.replace(self.status, watching=left > 0)


class SmallServer:
    """All replicas and the router."""

    def __init__(self, endpoint: Endpoint, started_with: Path) -> None:
        self.endpoint, self.started_with = endpoint, started_with
        self.lock = threading.Lock()
        self.reset()

    def reset(self) -> None:
        """Everything as in the beginning."""
        self.endpoint.access_log.write_bytes(b"")
        self.replicas = {
            each.name: SmallReplica(each.name, self.started_with) for each in self.endpoint.replicas
        }
        self.share, self.router_alive, self.sent = 0, True, 0

    def answer(self, who: str, path: str, body: Any) -> tuple[int, Any] | None:
        """Status and answer; None for a connection that breaks off."""
        with self.lock:
            if who == "router":
                return self._router(path) if self.router_alive else None
            if who == "test":
                return 200, self._test(path, **body)
            replica = self.replicas[who]
            found = self._replica(replica, path, body) if replica.alive else None
            return found if replica.alive else None

    def _replica(self, replica: SmallReplica, path: str, body: Any) -> tuple[int, Any]:
        if replica.sick:
            return 503, {"error": "the engine is dead"}
        route, _, query = path.partition("?")
        if route == "/v1/admin/speculator/requests":
            after = int(urllib.parse.parse_qs(query)["after"][0])
            rows = [dataclasses.asdict(each) for each in replica.finished[after:]]
            return 200, {"requests": rows, "next": len(replica.finished)}
        assert route == "/v1/admin/speculator"
        if body is not None:
            return replica.swap(body)
        return 503 if replica.status.broken else 200, dataclasses.asdict(replica.status)

    def _router(self, path: str) -> tuple[int, Any]:
        route, _, query = path.partition("?")
        if route == "/runtime_modify":
            self.share = int(urllib.parse.parse_qs(query)["speculator.canary"][0])
            return 200, "OK"
        if route == "/stats":
            name = f"cluster.{POOLS['canary']}.upstream_rq_active"
            waiting = sum(self.replicas[each.name].unanswered for each in self.endpoint.canary)
            return 200, {"stats": [{"name": name, "value": waiting}]}
        assert route == "/runtime", path
        return 200, {"entries": {"speculator.canary": {"final_value": str(self.share)}}}

    def _test(self, path: str, **body: Any) -> Any:
        match path:
            case "/test/traffic":
                self._traffic(**body)
            case "/test/reset":
                self.reset()
            case "/test/die":
                self.replicas[body["replica"]].alive = False
            case "/test/sicken":
                self.replicas[body["replica"]].sick = True
            case "/test/hang":
                self.replicas[body["replica"]].hangs = True
            case "/test/break":
                each = self.replicas[body["replica"]]
                each.status = dataclasses.replace(each.status, broken="not restored")
            case "/test/start":
                each = self.replicas[body["replica"]]
                each.started_with = Path(body.get("directory", each.started_with))
                each.start()
            case "/test/fault":
                self.replicas[body["replica"]].fault = body["fault"]
            case "/test/router":
                self.router_alive, self.share = body["alive"], 0
            case "/test/status":
                return {
                    "share": self.share / 100,
                    "replicas": {
                        name: dataclasses.asdict(each.status) | {"alive": each.alive}
                        for name, each in self.replicas.items()
                    },
                }
        return None

    def _traffic(self, at: float, requests: int) -> None:
        if not self.router_alive:
            return
        with self.endpoint.access_log.open("a") as log:
            for _ in range(requests):
                self.sent += 1
                # Evenly, so that every share is met by few requests.
                role = "canary" if (self.sent * self.share) % 10_000 < self.share else "stable"
                pools = [each for each in self.endpoint.replicas if each.role == role]
                pools += [each for each in self.endpoint.replicas if each.role != role]
                alive = [each for each in pools if self.replicas[each.name].alive]
                if not alive:
                    continue
                if alive[0].role == role:  # in turn
                    peers = [each for each in alive if each.role == role]
                    alive = peers[self.sent % len(peers) :]
                if self.replicas[alive[0].name].hangs:
                    self.replicas[alive[0].name].unanswered += 1
                    continue
                request_id = str(uuid.UUID(int=self.sent))
                self.replicas[alive[0].name].finish(request_id, at)
                row = {
                    "started_at": at - 0.5,
                    "cluster": role,
                    "host": alive[0].data.removeprefix("unix:"),
                    "status": 200,
                    "flags": "-",
                    "ttfb_ms": 50,
                    "duration_ms": 500,
                    "attempts": 1,
                    "path": "/v1/completions",
                    "request_id": request_id,
                    "session": f"session {self.sent}",
                }
                log.write(json.dumps(row) + "\n")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    who = ""
    small: SmallServer

    def do_GET(self) -> None:
        self.reply(None)

    def do_POST(self) -> None:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.reply(json.loads(data) if data else None)

    def reply(self, body: Any) -> None:
        answer = self.small.answer(self.who, self.path, body)
        if answer is None:
            self.close_connection = True
            return
        status, value = answer
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def address_string(self) -> str:
        return ""

    def log_message(self, *_: object) -> None:
        pass


class UnixServer(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64


class SmallEndpoint:
    """The endpoint, its process, and three bundles: `first` serves, `better` and `worse`."""

    def __init__(
        self, stable: int = 1, canary: int = 1, state_dir: Path | None = None, **policy: Any
    ) -> None:
        # Short: a socket's path has at most 107 bytes. In memory: what is synced is there at once.
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="outrider-", dir=memory))
        names = [("canary", "canary")] * canary + [(f"stable{i}", "stable") for i in range(stable)]
        self.endpoint = Endpoint.model_validate(
            {
                "name": "small",
                "state_dir": state_dir or self.folder / "state",
                "replicas": [
                    {
                        "name": name,
                        "role": role,
                        "data": f"unix:{self.folder}/{name}",
                        "admin": f"unix:{self.folder}/{name}.admin",
                    }
                    for name, role in names
                ],
                "policy": {
                    "shares": [100],
                    "baseline_requests": 6,
                    "min_requests": 4,
                    "min_seconds": 1,
                }
                | policy,
            }
        )
        self.endpoint.state_dir.mkdir(mode=0o700, exist_ok=True)
        self.bundles = {
            name: write_bundle(self.folder / name / "bundle", weights)
            for name, weights in (("first", b"2.0"), ("better", b"3.0"), ("worse", b"1.5"))
        }
        self.pid = 0

    def __enter__(self) -> "SmallEndpoint":
        self.start()
        return self

    def start(self) -> None:
        """Starts the process."""
        servers = [(each.name, each.data) for each in self.endpoint.replicas]
        servers += [(each.name, each.admin) for each in self.endpoint.replicas]
        servers += [("router", self.endpoint.envoy_admin), ("test", f"unix:{self.folder}/test")]
        for _, address in servers:
            Path(address.removeprefix("unix:")).unlink(missing_ok=True)
        self.pid = os.fork()
        if self.pid == 0:
            self._serve(servers)
        probe = Address.parse(f"unix:{self.folder}/test")
        assert wait_until(lambda: _answers(probe), 20)

    def _serve(self, servers: list[tuple[str, str]]) -> None:
        try:
            small = SmallServer(self.endpoint, self.bundles["first"])
            for who, address in servers:
                handler = type(who, (Handler,), {"who": who, "small": small})
                server = UnixServer(address.removeprefix("unix:"), handler)
                threading.Thread(target=server.serve_forever, daemon=True).start()
            signal.pause()
        finally:
            os._exit(1)

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)

    def restart(self) -> None:
        """Everything from the beginning."""
        kept = ("access.log", "envoy.sock")
        for path in self.endpoint.state_dir.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            elif path.name not in kept:
                path.unlink()
        self.test("/test/reset")

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def test(self, path: str, **body: Any) -> Any:
        """A test's own word to the process."""
        status, answer = Address.parse(f"unix:{self.folder}/test").call("POST", path, body)
        assert status == 200, answer
        return answer

    def file(self) -> Path:
        """The endpoint's file."""
        path = self.folder / "small.yaml"
        path.write_text(yaml.safe_dump(self.endpoint.model_dump(mode="json")))
        return path

    def served(self) -> dict[str, str]:
        """What each replica that is alive serves, by the name of the bundle."""
        digests = {bundle_digest(path): name for name, path in self.bundles.items()}
        replicas = self.test("/test/status")["replicas"]
        return {
            name: digests[status["digest"]] if status["digest"] else "first"
            for name, status in replicas.items()
            if status["alive"]
        }

    def manifest(self, bundle: str) -> Any:
        """bundle.json of one of the bundles."""
        return json.loads((self.bundles[bundle] / "bundle.json").read_text())

    def share(self) -> float:
        return float(self.test("/test/status")["share"])


def _answers(address: Address) -> bool:
    try:
        return address.call("POST", "/test/status", {}, timeout_s=5)[0] == 200
    except OSError:
        return False
