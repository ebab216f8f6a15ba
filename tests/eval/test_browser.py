"""The report in a real browser: offline, every chart drawn, readable on phone, desktop and paper.

Screenshots go to build/report/. Skipped without Chromium: `apt-get install chromium`, or set
OUTRIDER_BROWSER to the path of one.
"""

from pathlib import Path

import pytest

from tests.eval.browser import DESKTOP, PHONE, Page, find_browser, headless_browser
from tests.eval.sample_run import write_sample_run

HERE = Path(__file__).parent
CHECKS = (HERE / "page_checks.js").read_text()
SHOTS = HERE.parent.parent / "build" / "report"
OFFLINE = ("file://", "data:")


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
