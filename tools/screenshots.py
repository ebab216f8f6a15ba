"""Pictures of what people see first: README, documentation, report and terminal.

python -m tools.screenshots      # writes docs/images/*.png; needs Chromium

The report is the sample of the tests, which has every section. The start page of the documentation
is rendered if `make docs` built it. Look at each picture before a commit.
"""

import io
import sys
import tempfile
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from PIL import Image
from playwright.sync_api import Browser
from rich.console import Console

from outrider.eval.report.report import contents, print_first_screen, training_metrics
from outrider.eval.results.report import Report
from tests.eval.chromium import MISSING, chromium_path, opened
from tests.eval.sample_run import write_sample_run

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "docs" / "images"
START_PAGE = ROOT / "build" / "site" / "index.html"
COLOURS = 128
"""Of a picture's palette; text and flat areas need no more, and files are a third as large."""

LARGEST_FILE = 150_000
"""Bytes of a picture at most."""

SCREENS = {"desktop": (1280, 800), "phone": (390, 844)}
"""Width and height in CSS pixels."""

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><base href="{base}">
<style>
body {{ margin: 0 auto; max-width: 860px; padding: 28px; color: #1d2126; background: #ffffff;
  font: 15px/1.55 system-ui, sans-serif; }}
h1, h2 {{ line-height: 1.25; }} img {{ max-width: 100%; }} a {{ color: #1f5fbf; }}
pre, code {{ font: 13px/1.5 ui-monospace, monospace; background: #f3f4f6; border-radius: 4px; }}
pre {{ padding: 10px 14px; overflow-x: auto; }} code {{ padding: 1px 3px; }}
pre code {{ padding: 0; }}
table {{ border-collapse: collapse; }} th, td {{ padding: 4px 10px; border: 1px solid #d8dbe0; }}
body.terminal {{ max-width: none; color: #e7e8ea; background: #15171a; }}
body.terminal pre {{ margin: 0; padding: 0; background: none; overflow: visible; }}
</style>
<body class="{kind}">{body}</body></html>
"""


class Picture(NamedTuple):
    """A page, and how it is shown."""

    name: str
    page: Path
    size: tuple[int, int]
    scheme: str = "light"
    whole: bool = False
    """Whether the picture has the whole page, not its first screen only"""


def main() -> int:
    """Writes all pictures and prints their sizes; fails if one is too large."""
    path = chromium_path()
    if path is None:
        sys.exit(MISSING)
    too_large = False
    with tempfile.TemporaryDirectory() as folder, opened(path) as browser:
        for picture in pictures(Path(folder)):
            file = IMAGES / f"{picture.name}.png"
            file.write_bytes(rendered(browser, picture))
            size = file.stat().st_size
            print(f"{file.relative_to(ROOT)}: {size / 1000:.0f} kB")
            too_large |= size > LARGEST_FILE
    return int(too_large)


def pictures(folder: Path) -> Iterator[Picture]:
    """Every picture; pages that do not exist yet are written to the folder."""
    report = write_sample_run(folder, "a word")
    for screen, size in SCREENS.items():
        for scheme in ("light", "dark"):
            yield Picture(f"report_{screen}_{scheme}", report, size, scheme)
    terminal = folder / "terminal.html"
    body = f"<pre>{escape(summary_text(folder))}</pre>"
    terminal.write_text(PAGE.format(base="", kind="terminal", body=body), encoding="utf-8")
    yield Picture("report_terminal", terminal, (940, 100), whole=True)
    readme = folder / "readme.html"
    body = MarkdownIt("gfm-like", {"linkify": False}).render((ROOT / "README.md").read_text())
    base = f"{ROOT.as_uri()}/"
    readme.write_text(PAGE.format(base=base, kind="readme", body=body), encoding="utf-8")
    yield Picture("readme", readme, (940, 900))
    if START_PAGE.is_file():
        yield Picture("documentation", START_PAGE, SCREENS["desktop"])


def summary_text(run: Path) -> str:
    """What the terminal shows when the report is written."""
    report = Report.read(run / "report.json")
    text = io.StringIO()
    print_first_screen(contents(report, training_metrics(run)), Console(file=text, width=110))
    lines = (line.rstrip() for line in text.getvalue().splitlines())
    return "\n".join(lines)


def rendered(browser: Browser, picture: Picture) -> bytes:
    """The picture as an optimised PNG with a palette."""
    width, height = picture.size
    page = browser.new_page(
        viewport={"width": width, "height": height},
        is_mobile=width < 600,
        color_scheme="dark" if picture.scheme == "dark" else "light",
    )
    page.goto(picture.page.as_uri())
    raw = page.screenshot(full_page=picture.whole)
    page.close()
    image = Image.open(io.BytesIO(raw)).convert("RGB")
    palette = image.quantize(COLOURS, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    optimised = io.BytesIO()
    palette.save(optimised, "PNG", optimize=True)
    return optimised.getvalue()


if __name__ == "__main__":
    sys.exit(main())
