"""Documentation and benchmarks name only links, files, modules, commands and keys that exist."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/*.md"),
    *ROOT.glob("benchmarks/**/*.md"),
]
GENERATED = {ROOT / "docs" / "recipes.md"}
WRITTEN = [page for page in PAGES if page not in GENERATED]

FOLDERS = ("benchmarks", "docs", "requirements", "tests")
ROOMS = (
    "cli",
    "common",
    "data",
    "eval",
    "live",
    "pipeline",
    "recipes",
    "serving",
    "speculators",
    "tools",
    "training",
)
FILES = [
    path.relative_to(ROOT).as_posix()
    for folder in FOLDERS + ROOMS
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
] + [path.name for path in ROOT.iterdir() if path.is_file()]

PATH = re.compile(rf"({'|'.join(FOLDERS + ROOMS)})/[\w./-]*")
NOT_IN_THE_REPOSITORY = {
    "recipe.resolved.yaml",  # in a run directory
    "serve.sh",  # in an exported bundle
    "mine.yaml",  # a reader's own recipe
}


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def code_spans(text: str) -> Iterator[str]:
    """Inline code, outside of code blocks."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    yield from re.findall(r"`([^`\n]+)`", text)


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    kept = re.sub(r"[^\w\- ]", "", heading.strip().lower())
    return kept.replace(" ", "-")


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {slug(heading) for heading in headings}


def broken_links(page: Path) -> list[str]:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    return broken


def missing_paths(text: str) -> list[str]:
    """Names of files and folders that are nowhere in the repository."""
    missing = []
    for span in code_spans(text):
        if span in NOT_IN_THE_REPOSITORY or span.startswith("runs/") or "NAME" in span:
            continue
        if re.fullmatch(r"[\w./-]+\.(py|sh|yaml|toml|jinja)", span):
            if not any(file == span or file.endswith(f"/{span}") for file in FILES):
                missing.append(span)
        elif PATH.fullmatch(span) and not (ROOT / span).exists():
            missing.append(span)
    return missing


def missing_modules(text: str) -> list[str]:
    """Dotted names that are neither a module nor something that a module defines."""
    missing = []
    for name in re.findall(r"\b(?:outrider|benchmarks)(?:\.\w+)+", text):
        parts = name.removeprefix("outrider.").split(".")
        module, holder = ROOT.joinpath(*parts), ROOT.joinpath(*parts[:-1]).with_suffix(".py")
        if module.is_dir() or module.with_suffix(".py").is_file():
            continue
        if not holder.is_file() or not re.search(rf"\b{parts[-1]}\b", holder.read_text("utf-8")):
            missing.append(name)
    return missing


def recipe_keys() -> set[str]:
    """Every key of a recipe or an endpoint, and its shorter forms: `gate.x` for `eval.gate.x`."""
    pages = (ROOT / "docs" / name for name in ("recipes.md", "endpoint.md"))
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    keys = set(re.findall(r"^- `([\w.]+)`", text, flags=re.MULTILINE))
    return keys | {key.partition(".")[2] for key in keys}


def missing_keys(text: str) -> list[str]:
    """Keys, in code or on a command line, that neither recipes nor endpoints have."""
    keys = recipe_keys()
    sections = {key.partition(".")[0] for key in keys if "." in key}
    named = {span for span in code_spans(text) if re.fullmatch(r"\w+(\.\w+)+", span)}
    named |= set(re.findall(r"(?<![\w./-])(?:--)?(\w+(?:\.\w+)+)=", text))
    named |= {span.partition(":")[0] for span in code_spans(text) if re.match(r"\w+\.\w+: ", span)}
    endings = (".json", ".jsonl", ".key", ".py", ".sh", ".html", ".md", ".yaml", ".toml")
    return sorted(
        key
        for key in named
        if key.partition(".")[0] in sections and key not in keys and not key.endswith(endings)
    )


def commands() -> set[str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return set(tomllib.load(file)["project"]["scripts"])


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page) == []


@pytest.mark.parametrize("page", WRITTEN, ids=page_id)
def test_files_and_modules_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert missing_paths(text) == []
    assert missing_modules(text) == []


@pytest.mark.parametrize("page", WRITTEN, ids=page_id)
def test_commands_and_keys_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"\b\w+-(?:speculator|traffic)\b", text)) <= commands()
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"(?:`|^    )make ([\w-]+)", text, flags=re.MULTILINE))
    rules = re.findall(r"^([\w -]+):(?!=)", makefile, flags=re.MULTILINE)
    assert named <= set(" ".join(rules).split())
    assert missing_keys(text) == []


def defined_names(module: Path) -> set[str]:
    """Names at the top level of a module."""
    names = set()
    for node in ast.parse(module.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.If):
            names |= {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return names


def missing_imports(code: str) -> list[str]:
    """Imports of this project, inside functions too, that would fail."""
    missing = []
    for node in ast.walk(ast.parse(code)):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        package, *parts = node.module.split(".")
        if package not in ("outrider", "benchmarks", "tests"):
            continue
        path = ROOT.joinpath(*([] if package == "outrider" else [package]), *parts)
        module = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        defined = defined_names(module) if module.is_file() else set()
        for alias in node.names:
            submodule = path / alias.name
            exists = submodule.is_dir() or submodule.with_suffix(".py").is_file()
            if alias.name not in defined and not exists:
                missing.append(f"{node.module}.{alias.name}")
    return missing


@pytest.mark.parametrize("script", sorted(ROOT.glob("benchmarks/*.py")), ids=page_id)
def test_benchmarks_import_what_exists(script: Path) -> None:
    code = script.read_text(encoding="utf-8")
    assert missing_imports(code) == []
    assert missing_modules(ast.get_docstring(ast.parse(code)) or "") == []


def test_the_readme_is_short_and_names_every_command() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150
    assert [command for command in commands() if command not in text] == []


def test_what_does_not_exist_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A heading\n[a](#a-heading) [b](#b) [c](page.md) [d](gone.md)")
    assert broken_links(page) == ["#b", "gone.md"]
    assert missing_paths("`data/gone/` `gate.py` `gone.py` `eval/gate.py`") == [
        "data/gone/",
        "gone.py",
    ]
    modules = "outrider.eval.gate outrider.eval.gone outrider.common.errors.OutriderError"
    assert missing_modules(modules) == ["outrider.eval.gone"]
    code = "from outrider.eval.gate import judge, gone\nfrom benchmarks.gone import x"
    assert missing_imports(code) == ["outrider.eval.gate.gone", "benchmarks.gone.x"]
    keys = "`training.epochs` `training.gone` `gate.min_speed_ratio` x split.gone=1 `a.json`"
    assert missing_keys(keys) == ["split.gone", "training.gone"]
