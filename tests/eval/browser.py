"""A headless Chromium for tests of the report, driven by Playwright.

with headless_browser(find_browser()) as browser:
    page = Page(browser, "file:///report.html", PHONE, dark=True)
    page.evaluate("document.title"), page.complaints, page.requests, page.screenshot(path)
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, ViewportSize, sync_playwright

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
