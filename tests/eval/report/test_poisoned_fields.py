"""Every text of a report or a bundle is inert on the page, in Markdown, terminal and model card.

All text fields have markup, formulas, images, rich's markup and control characters. The page must
then have the elements that it has with a harmless word; the other forms must have none.
"""

import copy
import functools
import html.parser
import io
import json
import operator
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rich.console import Console

from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.common.inert import printable
from outrider.eval.report.compare import compare_runs, render_comparison
from outrider.eval.report.formatting import render_report
from outrider.eval.report.report import contents, print_first_screen
from outrider.eval.results.report import Report
from outrider.serving.bundle.model_card import model_card
from tests.eval.sample_run import write_sample_run
from tests.serving.exported import write_exported

Keys = tuple[str | int, ...]

POISON = (
    "=cmd()</td></style></script><script>alert(1)</script><img src=x onerror=y>"
    '" onload="z ![i](http://evil.example/x) [bold red]rich[/bold red] {{ 7 * 7 }}'
    "\x1b]0;own\x07\x9b31m\u202e\n=HYPERLINK(1)\n@SUM(1)"
)
WORD = "harmless"

FEWEST, FEWEST_SHOWN = 140, 60
"""Text fields of the report: 153 when this was written. And their places on its page."""

KINDS: set[Keys] = {("speculator", "kind"), ("choice", "lookup"), ("both_together", "lookup")}
"""Fields that a page refuses unless they name a kind."""

NAMES: set[Keys] = {
    *(
        ("slices",),
        ("on_policy", "slices"),
        ("on_policy", "parts"),
        ("on_policy", "slices", "tenant"),
    ),
    *(("traffic", "rejects"), ("traffic", "fidelity"), ("privacy", "found"), ("provenance", "git")),
    *(("rates", "compiled"), ("scenarios",)),
}
"""Objects whose names are a log's, a recipe's or a program's."""


def places(value: Any, keys: Keys = ()) -> Iterator[tuple[Keys, Any]]:
    """Every place below a value, and what is there."""
    yield keys, value
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*keys, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from places(inner, (*keys, index))


def texts(tree: Any) -> Iterator[Keys]:
    """The place of every text below a value."""
    return (keys for keys, value in places(tree) if isinstance(value, str))


def names(tree: Any) -> Iterator[Keys]:
    """The place of every name in an object below a value."""
    return (keys for keys, _ in places(tree) if keys and isinstance(keys[-1], str))


def copied_with_holder(tree: Any, keys: Keys) -> tuple[Any, Any]:
    """A copy of the tree, and the object or list in it that holds a place."""
    changed = copy.deepcopy(tree)
    return changed, functools.reduce(operator.getitem, keys[:-1], changed)


def replaced(tree: Any, keys: Keys, text: str) -> Any:
    """The tree with this text at a place."""
    changed, holder = copied_with_holder(tree, keys)
    holder[keys[-1]] = text
    return changed


def renamed(tree: Any, keys: Keys, name: str) -> Any:
    """The tree with this name at a place, and its value in the same order."""
    changed, holder = copied_with_holder(tree, keys)
    values = {name if key == keys[-1] else key: value for key, value in holder.items()}
    holder.clear()
    holder.update(values)
    return changed


class Elements(html.parser.HTMLParser):
    """Names of a page's elements, with the names of their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, tuple(name for name, _ in attributes)))


def assert_inert_markdown(text: str, place: object) -> None:
    assert printable(text) == text, place
    assert not re.search(r"<[A-Za-z/!?]|!\[", text), place
    assert not re.search(r"(?m)(^|\|)[ \t]*([=@]|[+-][A-Za-z(@=])", text), place


def assert_inert_terminal(values: dict[str, Any], place: object) -> None:
    """The summary has no control characters, and rich's markup is shown."""
    screen = io.StringIO()
    print_first_screen(values, Console(file=screen, force_terminal=False, width=200))
    shown = screen.getvalue()
    assert printable(shown) == shown, place
    assert "rich" not in shown or "[bold red]" in shown, place


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    write_sample_run(folder)
    return folder


def accepts(tree: Any) -> bool:
    """False where only some words are valid."""
    try:
        Report.model_validate(tree)
    except ValidationError:
        return False
    return True


def poisoned(tree: Any, text: str) -> Any:
    """The report with this text in all fields that may have any text."""
    free = [
        keys for keys in texts(tree) if keys not in KINDS and accepts(replaced(tree, keys, POISON))
    ]
    assert len(free) >= FEWEST
    for keys in free:
        tree = replaced(tree, keys, text)
    return tree


@pytest.mark.attack("report")
def test_no_text_of_a_report_acts_on_its_page_in_markdown_or_in_a_terminal(run: Path) -> None:
    tree = json.loads((run / "report.json").read_text())
    pages = []
    for text in (POISON, WORD):
        values = contents(Report.model_validate(poisoned(tree, text)), [])
        pages.append(render_report("report.j2", "html", **values))
        assert_inert_markdown(render_report("report.j2", "markdown", **values), text)
        assert_inert_terminal(values, text)
    assert pages[0].count("HYPERLINK(1)") >= FEWEST_SHOWN
    assert printable(pages[0]) == pages[0]
    assert Elements(pages[0]).elements == Elements(pages[1]).elements


@pytest.mark.attack("report")
def test_no_name_in_a_report_acts_on_a_page_in_markdown_or_in_a_terminal(
    run: Path, tmp_path: Path
) -> None:
    tree = json.loads((run / "report.json").read_text())
    other = tmp_path / "other"
    shutil.copytree(run, other)
    pages: dict[str, list[Elements]] = {"report": [], "comparison": []}
    for word in (POISON, WORD):
        changed = tree
        for keys in sorted(names(tree), key=len, reverse=True):  # inner names first
            if keys[:-1] in NAMES:
                changed = renamed(changed, keys, f"{word} {keys[-1]}")
        write_json(other / "report.json", changed)
        values = contents(Report.read(other / "report.json"), [])
        compared = compare_runs([run, other])
        shown = {
            "report": render_report("report.j2", "html", **values),
            "comparison": render_comparison(compared, "html"),
        }
        for kind, page in shown.items():
            assert word == WORD or "HYPERLINK(1)" in page, kind
            assert printable(page) == page, kind
            pages[kind].append(Elements(page))
        assert_inert_markdown(render_report("report.j2", "markdown", **values), word)
        assert_inert_markdown(render_comparison(compared, "markdown"), word)
        assert_inert_terminal(values, word)
    for kind, (hostile, harmless) in pages.items():
        assert hostile.elements == harmless.elements, kind


@pytest.mark.attack("report")
def test_no_text_of_two_reports_acts_on_the_page_that_compares_them(
    run: Path, tmp_path: Path
) -> None:
    tree = json.loads((run / "report.json").read_text())
    pages = []
    for text in (POISON, WORD):
        runs = [tmp_path / f"{number} {text.replace('/', '')}" for number in range(2)]
        for copied in runs:
            shutil.copytree(run, copied)
            write_json(copied / "report.json", poisoned(tree, text))
        compared = compare_runs(runs)
        pages.append(render_comparison(compared, "html"))
        assert_inert_markdown(render_comparison(compared, "markdown"), text)
    assert "HYPERLINK(1)" in pages[0]
    assert printable(pages[0]) == pages[0]
    assert Elements(pages[0]).elements == Elements(pages[1]).elements


@pytest.mark.attack("report")
def test_no_text_of_a_bundle_acts_on_its_model_card(tmp_path: Path) -> None:
    bundle = write_exported(tmp_path / "bundle", revision="v1")
    tree = json.loads((bundle / "bundle.json").read_text())
    cards = 0
    for keys in texts(tree):
        write_json(bundle / "bundle.json", replaced(tree, keys, POISON))
        try:
            card = model_card(bundle, "acme/speculator")
        except OutriderError as error:  # a name that it checks
            assert "\n" not in printable(str(error)) or keys[0] == "serve", keys
            continue
        cards += 1
        head, metadata, body = card.split("---\n", 2)
        assert head == "" and "cmd()" not in metadata, keys
        assert_inert_markdown(body, keys)
    assert cards >= 5
