"""A headless Chromium, driven over a pipe by its DevTools protocol: what the browser says of a page, without any package.

with Browser(find_browser(), folder) as browser:
    page = browser.open("file:///report.html", width=390, height=844, dark=True)
    page.evaluate("document.title"); page.complaints; page.requests; page.screenshot(path); page.pdf()
"""

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-sync",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
LAUNCH = "import os, sys; r, w = map(int, sys.argv[1:3]); os.dup2(r, 3); os.dup2(w, 4); os.execv(sys.argv[3], sys.argv[3:])"
"""The browser reads commands from file descriptor 3 and writes to 4."""
PATIENCE_S = 60


def find_browser() -> str | None:
    """The first Chromium on the PATH; OUTRIDER_BROWSER names another."""
    return os.environ.get("OUTRIDER_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """One browser process with a profile of its own in `folder`."""

    def __init__(self, path: str, folder: Path) -> None:
        (theirs_in, ours_out), (ours_in, theirs_out) = os.pipe(), os.pipe()
        # Above 3 and 4, so that neither overwrites the other on its way there.
        passed = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (theirs_in, theirs_out)]
        words = [
            sys.executable,
            "-c",
            LAUNCH,
            *map(str, passed),
            path,
            *FLAGS,
            f"--user-data-dir={folder / 'profile'}",
        ]
        with (folder / "browser.log").open("wb") as log:
            self.process = subprocess.Popen(words, pass_fds=passed, stdout=log, stderr=log)
        for fd in (theirs_in, theirs_out, *passed):
            os.close(fd)
        self._out, self._in, self._left, self._count = ours_out, ours_in, b"", 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(20)
        os.close(self._out)
        os.close(self._in)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Sends a command and returns its result; events that arrive meanwhile are kept."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def wait_for(self, method: str, session: str) -> None:
        """Until that event of that page has come."""
        while not any(
            event.get("method") == method and event.get("sessionId") == session
            for event in self.events
        ):
            self.events.append(self._next())

    def open(self, url: str, width: int, height: int, dark: bool = False) -> "Page":
        """A page of this viewport (CSS pixels), loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        page.media(dark=dark)
        page.call("Page.navigate", url=url)
        self.wait_for("Page.loadEventFired", session)
        page.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        return page

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            part = os.read(self._in, 1 << 20) if ready else b""
            if not part:
                raise RuntimeError(
                    f"the browser {'ended' if ready else f'said nothing for {PATIENCE_S} s'}"
                )
            self._left += part
        message, self._left = self._left.split(b"\0", 1)
        return json.loads(message)


class Page:
    """A tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self.browser, self.session = browser, session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """A command to this tab."""
        return self.browser.call(method, self.session, **parameters)

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression; a promise's once it is kept."""
        answer = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"].get("description"))
        return answer["result"].get("value")

    def media(self, dark: bool = False, paper: bool = False) -> None:
        """What the page's media queries see."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="print" if paper else "", features=[scheme])

    @property
    def complaints(self) -> list[str]:
        """What the browser logged, the console was told, or a script threw."""
        kinds = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
        return [json.dumps(event["params"]) for event in self._events(*kinds)]

    @property
    def requests(self) -> list[str]:
        """Addresses that the page asked for, itself first."""
        return [
            event["params"]["request"]["url"] for event in self._events("Network.requestWillBeSent")
        ]

    def _events(self, *methods: str) -> list[dict[str, Any]]:
        return [
            e
            for e in self.browser.events
            if e.get("sessionId") == self.session and e.get("method") in methods
        ]

    def screenshot(self, path: Path) -> Path:
        """The whole page, as PNG."""
        shot = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def pdf(self) -> bytes:
        """The page as it prints on A4."""
        printed = self.call(
            "Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=False
        )
        return base64.b64decode(printed["data"])
