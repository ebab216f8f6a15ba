"""The report in a real browser: nothing loaded, nothing complained of, every chart drawn, readable on a phone, in the dark and on paper.

Screenshots stay in build/report/. Skipped where there is no Chromium (`apt-get install chromium`, or OUTRIDER_BROWSER).
"""

from pathlib import Path

import pytest

from tests.eval.browser import Browser, find_browser
from tests.eval.sample_history import write_sample_history
from tests.eval.sample_run import write_sample_run

HERE = Path(__file__).parent
CHECKS = (HERE / "page_checks.js").read_text()
SHOTS = HERE.parent.parent / "build" / "report"
PHONE, DESKTOP = (390, 844), (1280, 900)
OFFLINE = ("file://", "data:")

BROKEN = """<!doctype html><meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark"><body>
<main><p style="color:#999">pale</p><div style="width:1500px">wide</div><img src="http://127.0.0.1:9/tracker.png">
<figure><figcaption>empty</figcaption><svg viewBox="0 0 100 50"><g class="role-mark"><path d="M0,0" fill="red"/></g>
<text style="font-size:2px">n</text></svg></figure></main><script>console.error("broken")</script>"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    path = find_browser()
    if path is None:
        pytest.skip("no Chromium here: apt-get install chromium, or name one in OUTRIDER_BROWSER")
    with Browser(path, tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_sample_run(tmp_path_factory.mktemp("report"))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_a_person_can_read_it(browser, report, size, dark):
    page = browser.open(report.as_uri(), *size, dark=dark)
    page.evaluate("document.querySelectorAll('details').forEach(box => box.open = true)")
    assert page.evaluate("document.querySelectorAll('main svg').length") == 13
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) < 200) == dark
    name = f"{'phone' if size is PHONE else 'desktop'}_{'dark' if dark else 'light'}.png"
    print("screenshot:", page.screenshot(SHOTS / name))
    assert page.evaluate(CHECKS) == []
    assert page.complaints == []
    assert all(address.startswith(OFFLINE) for address in page.requests), page.requests
    assert page.requests[0] == report.as_uri()
    # The verdict and the figures that it rests on come before anything that has to be scrolled to.
    assert page.evaluate("document.querySelector('.tiles').getBoundingClientRect().top") < size[1]


def test_runs_compared_are_read_on_a_phone_too(browser, tmp_path):
    path, *_ = write_sample_history(tmp_path)
    page = browser.open(path.as_uri(), *PHONE)
    print("screenshot:", page.screenshot(SHOTS / "compared.png"))
    assert page.evaluate(CHECKS) == [] and page.complaints == []
    assert all(address.startswith(OFFLINE) for address in page.requests)


def test_it_prints_dark_on_light_whatever_the_screen_is(browser, report):
    assert report.stat().st_size < 3_000_000
    page = browser.open(report.as_uri(), *DESKTOP, dark=True)
    page.media(dark=True, paper=True)
    print("screenshot:", page.screenshot(SHOTS / "print.png"))
    assert page.evaluate(CHECKS) == []
    ink = page.evaluate("getComputedStyle(document.body).color")
    assert sum(map(int, ink[4:-1].split(","))) < 200
    printed = page.pdf()
    (SHOTS / "report.pdf").write_bytes(printed)
    assert printed.startswith(b"%PDF") and 2 <= printed.count(b"/Type /Page\n") <= 15


def test_the_checks_find_what_is_broken(browser, tmp_path):
    (tmp_path / "broken.html").write_text(BROKEN)
    page = browser.open((tmp_path / "broken.html").as_uri(), *PHONE)
    found = page.evaluate(CHECKS)
    page.media(dark=True)
    assert "of rgb(0, 0, 0)" in page.evaluate(CHECKS)[3], (
        "the chart's letters are black, and so is the paper in the dark"
    )
    assert [finding.split(":")[0] for finding in found] == [
        "overflow",
        "chart",
        "small",
        "contrast",
    ]
    assert "2.85 of rgb(153, 153, 153)" in found[3]
    assert any("broken" in complaint for complaint in page.complaints)
    assert "http://127.0.0.1:9/tracker.png" in page.requests
