"""The report in a real browser: offline, every chart drawn, readable on phone, desktop and paper.

Screenshots go to build/report/. Skipped without Chromium: `apt-get install chromium`, or set
OUTRIDER_BROWSER to the path of one.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, ViewportSize, sync_playwright

from tests.eval.sample_run import write_sample_run

HERE = Path(__file__).parent
CHECKS = (HERE / "page_checks.js").read_text()
SHOTS = HERE.parent.parent / "build" / "report"
OFFLINE = ("file://", "data:")
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
PHONE: ViewportSize = {"width": 390, "height": 844}
DESKTOP: ViewportSize = {"width": 1280, "height": 900}
"""Viewports in CSS pixels."""


def find_browser() -> str | None:
    """The path of the first Chromium on PATH, or of OUTRIDER_BROWSER."""
    return os.environ.get("OUTRIDER_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def headless_browser(path: str) -> Iterator[Browser]:
    """A running browser."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()


class Page:
    """A loaded and painted page, with everything that it requested and logged."""

    def __init__(self, browser: Browser, url: str, size: ViewportSize, dark: bool = False) -> None:
        self.complaints: list[str] = []
        """Console messages, browser log entries and uncaught exceptions."""
        self.requests: list[str] = []
        """Requested addresses, the page's own first."""
        self._page = browser.new_page(viewport=size, is_mobile=size["width"] < 600)
        self._page.on("console", lambda message: self.complaints.append(message.text))
        self._page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self._page.on("request", lambda request: self.requests.append(request.url))
        self.emulate("screen", dark)
        self._page.goto(url)
        self.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )

    def evaluate(self, script: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        return self._page.evaluate(script)

    def emulate(self, media: Literal["screen", "print"], dark: bool = False) -> None:
        """Sets what the page's media queries see."""
        self._page.emulate_media(media=media, color_scheme="dark" if dark else "light")

    def screenshot(self, path: Path) -> Path:
        """Writes the whole page as PNG."""
        self._page.screenshot(path=path, full_page=True)
        return path

    def pdf(self) -> bytes:
        """The page as it prints on A4."""
        return self._page.pdf(format="A4", print_background=False)


@pytest.fixture(scope="module")
def browser():
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium: apt-get install chromium, or set OUTRIDER_BROWSER")
    with headless_browser(path) as browser:
        yield browser


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_sample_run(tmp_path_factory.mktemp("report"))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_the_report_is_readable(browser, report, size, dark):
    page = Page(browser, report.as_uri(), size, dark)
    page.evaluate("document.querySelectorAll('details').forEach(box => box.open = true)")
    assert page.evaluate("document.querySelectorAll('main svg').length") == 6
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 200) == dark
    name = f"{'phone' if size is PHONE else 'desktop'}_{'dark' if dark else 'light'}.png"
    print("screenshot:", page.screenshot(SHOTS / name))
    assert page.evaluate(CHECKS) == []
    assert page.complaints == []
    assert all(address.startswith(OFFLINE) for address in page.requests), page.requests
    assert page.requests[0] == report.as_uri()
    # The verdict and the figures that it rests on are visible without scrolling.
    assert (
        page.evaluate("document.querySelector('.tiles').getBoundingClientRect().top")
        < size["height"]
    )
