"""Outside speculators/kinds/ no code names a kind of drafter, by identifier, string or import."""

import ast
import re

from outrider.speculators import kinds
from outrider.speculators.kinds import KINDS
from outrider.speculators.kinds.no_speculation import NoSpeculation
from tests.test_rooms import LAYERS, MODULES, ROOT, imported

COMMON_WORDS = {"suffix", "none"}
"""Kinds' names that are also ordinary words: the end of a file name, and the absence of something.
Of these kinds only the class is looked for (`suffix_lookup`)."""

EXCEPTIONS = {
    "serving/commands/speculation.py": "lists the keys of vLLM's speculative_config",
    "speculators/checkpoints/refusals.py": "lists the drafters of vLLM in unsupported targets",
    "serving/commands/serve_command.py": "reads `--speculative-model [ngram]` of earlier releases",
    "serving/vllm_flags.py": "lists vLLM's flags, some of which are named after a method",
    "serving/vllm_hooks/capture_extension.py": "calls vLLM's supports_eagle3",
}
"""Files that may name a kind, and why."""


def as_pattern(name: str) -> str:
    """Matches a kind's name with underscores anywhere, and without its version (`eagle3`)."""
    letters = name.replace("_", "").rstrip("0123456789")
    return "_?".join(letters) + r"(_?\d)?"


def kind_pattern() -> re.Pattern[str]:
    """Matches the name or class of every kind as a word of an identifier or of a string."""
    names = {type(kind).__name__ for kind in KINDS.values()} | KINDS.keys() - COMMON_WORDS
    return re.compile(
        rf"(?<![a-z])({'|'.join(map(as_pattern, sorted(names)))})(?![a-z])", re.IGNORECASE
    )


class Undocumented(ast.NodeTransformer):
    """A tree without docstrings, which are prose."""

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return ast.Pass() if isinstance(node.value, ast.Constant) else node


def kinds_named_in(source: str) -> list[str]:
    """The lines of code that name a kind."""
    code = ast.unparse(Undocumented().visit(ast.parse(source)))
    # CamelCase split, so that MTPSpeculator holds the word MTP.
    code = re.sub(r"([A-Z]+)([A-Z][a-z])|([a-z0-9])([A-Z])", r"\1\3_\2\4", code)
    pattern = kind_pattern()
    return [line.strip() for line in code.split("\n") if pattern.search(line)]


def outside() -> dict[str, str]:
    """Path and source of every file outside the folder."""
    paths = [path for room in LAYERS for path in sorted((ROOT / room).rglob("*.py"))]
    sources = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in paths}
    return {
        name: source
        for name, source in sources.items()
        if not name.startswith("speculators/kinds/") and name not in EXCEPTIONS
    }


def test_no_code_outside_the_folder_names_a_kind() -> None:
    wrong = [
        f"{name}: {line}" for name, source in outside().items() for line in kinds_named_in(source)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_code_outside_the_folder_imports_a_kinds_module() -> None:
    """Only the registry and what all kinds share, so that a kind can be removed with its module."""
    folder = kinds.__name__
    of_one_kind = {
        ".".join(type(kind).__module__.split(".")[: folder.count(".") + 2])
        for kind in KINDS.values()
    }
    wrong = [
        f"{name} imports {module}"
        for name in outside()
        for module in imported(ROOT / name, MODULES)
        if any(f"{module}.".startswith(f"{own}.") for own in of_one_kind)
    ]
    assert not wrong, "\n".join(wrong)


def test_no_template_names_a_kind() -> None:
    """Neither in a quoted string, such as a comparison of a kind's name, nor in the text.

    A quoted name may be one of `COMMON_WORDS`, since the templates have no API's fields.
    """
    quoted = "|".join(sorted(KINDS.keys() - {NoSpeculation.name}))
    pattern = re.compile(rf"[\"'](?:{quoted})[\"']|{kind_pattern().pattern}", re.IGNORECASE)
    templates = [path for room in LAYERS for path in sorted((ROOT / room).rglob("*.j2"))]
    assert templates
    wrong = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in templates
        for match in pattern.finditer(path.read_text("utf-8"))
    ]
    assert not wrong, "\n".join(wrong)


def test_the_names_are_found_in_every_spelling() -> None:
    for kind in KINDS.values():
        spellings = [type(kind).__name__]
        if kind.name not in COMMON_WORDS:
            name = kind.name
            spellings += [name, name.upper(), f"load_{name}", f"{name.rstrip('3')}_config"]
        for spelling in spellings:
            assert kinds_named_in(f"{spelling} = 1"), spelling
    for name in ("path.suffix", "none", "attempts", "speculation"):
        assert not kinds_named_in(f"{name} = 1"), name
