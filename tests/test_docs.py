"""Documentation names only links, commands and keys that exist; benchmarks can be imported."""

import ast
import importlib
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks import workloads
from outrider.cli.main import VERBS
from tests.test_rooms import LAYERS
from tools import headline_chart

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]
KEYS = ("basic-keys.md", "all-keys.md", "endpoint.md")
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-") for text in headings}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        # The site has the pages of docs/ only: there, name other files as code.
        assert target.is_relative_to(DOCS) or not page.is_relative_to(DOCS), link
        assert not anchor or anchor in anchors(target), link


@pytest.fixture(scope="module")
def keys() -> set[str]:
    """Every key of a recipe or an endpoint, and its shorter forms: `gate.x` for `eval.gate.x`."""
    pages = (REFERENCE / name for name in KEYS)
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    found = set(re.findall(r"^- `([\w.]+)`", text, flags=re.MULTILINE))
    return found | {key.partition(".")[2] for key in found}


@pytest.mark.parametrize("page", [p for p in PAGES if p.parent != REFERENCE], ids=page_id)
def test_commands_and_keys_exist(page: Path, keys: set[str]) -> None:
    text = page.read_text(encoding="utf-8")
    # The scripts that are other names of verbs are for people who know them.
    assert page.name == "CHANGELOG.md" or not re.findall(r"\b\w+-(?:speculator|traffic)\b", text)
    assert set(re.findall(r"(?:`|^ +)outrider ([a-z]+)", text, flags=re.MULTILINE)) <= set(VERBS)
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    rules = " ".join(re.findall(r"^([\w -]+):(?!=)", makefile, flags=re.MULTILINE)).split()
    assert set(re.findall(r"(?:`|^    )make ([\w-]+)", text, flags=re.MULTILINE)) <= set(rules)
    sections = {key.partition(".")[0] for key in keys if "." in key}
    outside_of_blocks = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"`(\w+(?:\.\w+)+)`", outside_of_blocks))
    named |= set(re.findall(r"(?<![\w./-])(?:--)?(\w+(?:\.\w+)+)=", text))
    files = (".json", ".jsonl", ".key", ".py", ".sh", ".html", ".md", ".yaml", ".toml")
    of_sections = {key for key in named if key.partition(".")[0] in sections}
    assert not [key for key in of_sections - keys if not key.endswith(files)]


@pytest.fixture(scope="module")
def options() -> dict[str, set[str]]:
    """The options of every verb."""
    page = (REFERENCE / "commands.md").read_text(encoding="utf-8")
    sections = re.split(r"^## outrider (?=\w)", page, flags=re.MULTILINE)[1:]
    everywhere = {"--help", "--quiet"}
    return {text.split()[0]: {*re.findall(r"--[a-z-]+", text)} | everywhere for text in sections}


@pytest.mark.parametrize("source", ["pages", "messages"])
def test_commands_have_their_options(
    source: str, options: dict[str, set[str]], printed: list[str]
) -> None:
    pages = [page.read_text(encoding="utf-8") for page in PAGES if page.name != "CHANGELOG.md"]
    commands: list[tuple[str, str]] = []
    for text in printed if source == "messages" else pages:
        commands += re.findall(r"`outrider ([a-z]+)([^`]*)`", text)
        commands += re.findall(r"^ {4}outrider ([a-z]+)([^#\n]*)", text, flags=re.MULTILINE)
    assert len(commands) > 10
    for verb, words in commands:
        assert set(re.findall(r"(?<=\s)--[a-z-]+", words)) <= options[verb], f"{verb}{words}"


def test_pictures_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in (DOCS / "images").iterdir()}
    assert [name for name, size in sizes.items() if size > 150_000] == []
    assert sum(sizes.values()) < 1_000_000


@pytest.mark.parametrize("script", sorted(ROOT.glob("benchmarks/*.py")), ids=page_id)
def test_benchmarks_import_what_exists(script: Path) -> None:
    importlib.import_module(f"benchmarks.{script.stem}")


@pytest.fixture(scope="module")
def headline() -> dict[str, Any]:
    """What the README and the benchmarks' first table may claim."""
    file = ROOT / "benchmarks" / "results" / "headline.json"
    return json.loads(file.read_text(encoding="utf-8"))


def test_the_headline_table_is_measured(headline: dict[str, Any]) -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    source = "".join((ROOT / path).read_text(encoding="utf-8") for path in headline["sources"])
    for row in (headline["columns"], *headline["rows"]):
        assert f"| {' | '.join(row)} |".replace("  ", " ") in page
        assert all(cell in source for cell in row if "[" in cell)


def test_the_readmes_chart_is_measured(headline: dict[str, Any]) -> None:
    chart = headline["chart"]
    source = (ROOT / chart["source"]).read_text(encoding="utf-8")
    for row in chart["rows"]:
        assert f"| {row['row']} | {row['tokens_per_s']} | {row['ratio']} |".replace("  ", " ") in (
            source.replace("**", "")
        )
    assert headline_chart.CHART.read_text(encoding="utf-8") == headline_chart.svg(chart)


def test_the_table_of_the_workloads_is_measured() -> None:
    page = (ROOT / "benchmarks" / "results" / "smollm2.md").read_text(encoding="utf-8")
    results = json.loads(workloads.RESULTS.read_text(encoding="utf-8"))
    assert [line for line in workloads.table(results) if line not in page] == []


def test_the_readme_has_only_numbers_of_result_files(headline: dict[str, Any]) -> None:
    number = r"\d+(?:[.,]\d+)*"
    known = set()
    for entry in headline["text"]:
        source = (ROOT / entry["source"]).read_text(encoding="utf-8")
        for quote in entry["quotes"]:
            assert quote in source, f"{entry['source']}: {quote}"
        known |= set(re.findall(number, " ".join(entry.get("in_the_readme", entry["quotes"]))))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    no_claims = r"^ {4}.*|`[^`]*`|\]\([^)]*\)|[A-Za-z][\w-]*\d[\w.]*"
    claims = re.sub(no_claims, "", readme, flags=re.MULTILINE)
    assert len(set(re.findall(number, claims))) > 20
    assert set(re.findall(number, claims)) <= known


@pytest.fixture(scope="module")
def printed() -> list[str]:
    """Every text in the product's code; values in it are a NUL."""
    texts = []
    for path in (path for room in LAYERS for path in (ROOT / room).rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        docstrings = [node.value for node in nodes if isinstance(node, ast.Expr)]
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                parts = (getattr(part, "value", None) for part in node.values)
                texts.append("".join(part if isinstance(part, str) else "\0" for part in parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts += [node.value] if node not in docstrings else []
    return texts


def test_quoted_messages_are_printed(printed: list[str]) -> None:
    page = (DOCS / "how-to" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = re.findall(r'"([^"\n]+)"', page)
    assert len(messages) > 10
    for message in messages:
        words = (re.escape(part) for part in re.split(r"\s*\.\.\.\s*", message))
        pattern = re.compile(r"[^\n]*?".join(words))
        assert any(pattern.search(text) for text in printed), message


def test_placeholders_are_listed() -> None:
    """The words to replace before publication, and every file that has them, are in one file."""
    page = (ROOT / "PLACEHOLDERS.md").read_text(encoding="utf-8")
    table = re.findall(r"^\| `([A-Z_]+)` \|.*\| (`.*) \|$", page, flags=re.MULTILINE)
    assert len(table) == 3
    paths = [*ROOT.glob("*"), *ROOT.glob(".github/**/*"), *DOCS.rglob("*.md")]
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8", errors="ignore")
        for path in paths
        if path.is_file() and path.name != "PLACEHOLDERS.md"
    }
    for word, files in table:
        assert {path for path, text in texts.items() if word in text} == set(
            re.findall(r"`([^`]+)`", files)
        )


def test_the_citation_has_the_version_of_pyproject_and_of_the_changelog() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == project["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {project['version']} - {citation['date-released']}\n" in changelog


def test_readers_learn_what_has_not_been_run() -> None:
    """As long as the benchmarks have no result of a GPU, so do the pages that promise one."""
    sentence = "Nothing here has been run on a GPU or on DeepSeek-R1"
    pages = ("benchmarks/README.md", "README.md", "docs/how-to/r1-distill.md")
    texts = (" ".join((ROOT / page).read_text(encoding="utf-8").split()) for page in pages)
    assert len({sentence in text for text in texts}) == 1


def test_people_can_read_all_of_it() -> None:
    guides = [page for page in ROOT.glob("docs/**/*.md") if page.parent != REFERENCE]
    words = [page.read_text(encoding="utf-8").split() for page in (ROOT / "README.md", *guides)]
    assert len(words[0]) <= 700
    assert sum(map(len, words[1:])) <= 16_600
