"""The report and a comparison in a real browser: offline, every chart drawn, readable everywhere.

Screenshots go to build/report/. Skipped without Chromium: `apt-get install chromium`, or set
OUTRIDER_BROWSER to the path of one.
"""

from pathlib import Path

import pytest

from outrider.eval.report.compare import compare_runs, render_comparison
from tests.eval.chromium import MISSING, chromium_path, opened
from tests.eval.sample_results import history_report
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


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Two runs, one with a long name."""
    folder = tmp_path_factory.mktemp("compared")
    runs = [folder / "march", folder / "resume_screening_of_april_with_more_sessions"]
    for day, run in enumerate(runs):
        history_report(day, 2, 3 - day / 2).write(run / "report.json")
    page = folder / "compared.html"
    page.write_text(render_comparison(compare_runs(runs), "html"), encoding="utf-8")
    return page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", VIEWPORTS)
def test_the_report_is_readable(browser, report, name, scheme):
    page = checked(browser, report, name, scheme)
    first_screen_is_complete(page, name)
    page.evaluate("document.querySelectorAll('details').forEach(box => box.open = true)")
    assert page.evaluate("document.querySelectorAll('main svg').length") == 6
    page.screenshot(path=SHOTS / f"{name}_{scheme}.png", full_page=True)
    assert page.evaluate(CHECKS) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", VIEWPORTS)
def test_a_comparison_is_readable(browser, comparison, name, scheme):
    page = checked(browser, comparison, name, scheme)
    assert page.evaluate("document.querySelectorAll('.bar u').length") == 6
    assert box_of(page, ".speeds")["bottom"] < VIEWPORTS[name]["height"]
    header = "getComputedStyle(document.querySelector('.scroll tr')).display"
    assert (page.evaluate(header) == "none") == (name == "phone")  # cards below 600 px
    page.screenshot(path=SHOTS / f"compared_{name}_{scheme}.png", full_page=True)
    assert page.evaluate(CHECKS) == []


def checked(browser, file, name, scheme):
    """The opened page, which has the scheme's background and asked for nothing else."""
    complaints = []
    requests = []
    page = browser.new_page(
        viewport=VIEWPORTS[name], is_mobile=name == "phone", color_scheme=scheme
    )
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    page.goto(file.as_uri())
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 200) == (scheme == "dark")
    assert complaints == []
    assert all(address.startswith(OFFLINE) for address in requests), requests
    assert requests[0] == file.as_uri()
    return page


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
