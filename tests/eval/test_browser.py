"""The report in a real browser: offline, every chart drawn, readable on phone, desktop and paper.

Screenshots go to build/report/. Skipped without Chromium: `apt-get install chromium`, or set
OUTRIDER_BROWSER to the path of one.
"""

from pathlib import Path

import pytest

from tests.eval.chromium import MISSING, chromium_path, opened
from tests.eval.sample_run import write_sample_run

HERE = Path(__file__).parent
CHECKS = (HERE / "page_checks.js").read_text()
SHOTS = HERE.parent.parent / "build" / "report"
OFFLINE = ("file://", "data:")
VIEWPORTS = {"phone": {"width": 390, "height": 844}, "desktop": {"width": 1280, "height": 800}}
"""In CSS pixels."""

LONGEST_PAGE = {"phone": 9000, "desktop": 6000}
"""In CSS pixels, before anything is unfolded."""


@pytest.fixture(scope="module")
def browser():
    path = chromium_path()
    if path is None:
        pytest.skip(MISSING)
    with opened(path) as running:
        yield running


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_sample_run(tmp_path_factory.mktemp("report"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", VIEWPORTS)
def test_the_report_is_readable(browser, report, name, scheme):
    size = VIEWPORTS[name]
    complaints = []
    requests = []
    page = browser.new_page(viewport=size, is_mobile=name == "phone", color_scheme=scheme)
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(report.as_uri())
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    first_screen_is_complete(page, name)
    page.evaluate("document.querySelectorAll('details').forEach(box => box.open = true)")
    assert page.evaluate("document.querySelectorAll('main svg').length") == 6
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 200) == (scheme == "dark")
    page.screenshot(path=SHOTS / f"{name}_{scheme}.png", full_page=True)
    assert page.evaluate(CHECKS) == []
    assert complaints == []
    assert all(address.startswith(OFFLINE) for address in requests), requests
    assert requests[0] == report.as_uri()


def first_screen_is_complete(page, name):
    """Verdict and chart are visible without scrolling; on a phone, the verdict's loads of it."""
    height = VIEWPORTS[name]["height"]
    assert box_of(page, ".verdict")["bottom"] < height / 3
    bars = ".speeds" if name == "desktop" else ".speeds .load:nth-child(3)"
    chart = box_of(page, bars)
    assert chart["top"] > 0 and chart["bottom"] < height
    assert chart["left"] >= 0 and chart["right"] <= VIEWPORTS[name]["width"]
    if name == "desktop":
        assert box_of(page, ".tiles")["bottom"] < height
    length = page.evaluate("document.documentElement.scrollHeight")
    assert length < LONGEST_PAGE[name]


def box_of(page, selector):
    """The bounding box of the first element, in CSS pixels of the unscrolled page."""
    box = f"document.querySelector('{selector}').getBoundingClientRect().toJSON()"
    return page.evaluate(box)
