"""A headless Chromium for pages on this machine.

path = chromium_path()
with opened(path) as browser:
    page = browser.new_page()
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
MISSING = "no Chromium: apt-get install chromium, or set OUTRIDER_BROWSER"
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


def chromium_path() -> str | None:
    """Path of the browser: OUTRIDER_BROWSER or the first that is installed; None without any."""
    return os.environ.get("OUTRIDER_BROWSER") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def opened(path: str) -> Iterator[Browser]:
    """Runs the browser at `path` until the context ends."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()
