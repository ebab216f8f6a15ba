"""Outside speculators/kinds/ no code names a kind of drafter, by identifier, string or import.

So that a kind can be removed with its modules and its line in the registry.
"""

import ast
import re

from outrider.speculators import kinds
from outrider.speculators.kinds import KINDS
from outrider.speculators.kinds.no_speculation import NoSpeculation
from tests.test_rooms import LAYERS, MODULES, ROOT, imported

COMMON_WORDS = {"suffix", "none"}
"""Kinds' names that are also ordinary words: the end of a file name, and the absence of something.
Of these kinds the class is looked for (`suffix_lookup`), and a string that is the name."""

SHARED = {"outrider.speculators.kinds." + name for name in ("protocol", "drafter")}
"""Modules of the folder that all kinds use, and so may others."""

EXCEPTIONS = {
    "serving/commands/speculation.py": "lists the keys of vLLM's speculative_config",
    "speculators/checkpoints/model_config.py": "lists keys of published config.json files",
    "speculators/checkpoints/refusals.py": "lists the drafters of vLLM in unsupported targets",
    "serving/commands/serve_command.py": "reads `--speculative-model [ngram]` of earlier releases",
    "serving/vllm_flags.py": "lists vLLM's flags, some of which are named after a method",
    "serving/vllm_hooks/capture_extension.py": "calls vLLM's supports_eagle3",
    "data/formats/calls/openai.py": "reads the field `suffix` of requests for completions",
}
"""Files that may name a kind, and why."""


def as_pattern(name: str) -> str:
    """Matches a kind's name in any spelling (`n-gram`), and without its version (`eagle3`)."""
    # "No speculation" is what an engine does without any drafter, not only the kind's name.
    separator = "_?" if name == NoSpeculation.__name__ else "[ _-]?"
    letters = name.replace("_", "").rstrip("0123456789")
    return separator.join(letters) + rf"({separator}\d)?"


def quoted_names() -> str:
    """Matches a string that is a kind's name; `none` is also an API's value."""
    return rf"[\"'](?:{'|'.join(sorted(KINDS.keys() - {NoSpeculation.name}))})[\"']"


def kind_pattern() -> re.Pattern[str]:
    """Matches the name or class of every kind as a word of an identifier or of a string."""
    names = {type(kind).__name__ for kind in KINDS.values()} | KINDS.keys() - COMMON_WORDS
    words = "|".join(map(as_pattern, sorted(names)))
    return re.compile(rf"(?<![a-z])({words})(?![a-z])|{quoted_names()}", re.IGNORECASE)


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
    """Only the registry and what all kinds share, also where a file may name a kind."""
    of_one_kind = {name for name in MODULES if name.startswith(f"{kinds.__name__}.")} - SHARED
    assert {type(kind).__module__ for kind in KINDS.values()} <= of_one_kind
    importing = {
        name: imported(path, MODULES) & of_one_kind
        for name, path in MODULES.items()
        if name not in of_one_kind | SHARED | {kinds.__name__}
    }
    wrong = [f"{name} imports {module}" for name, used in importing.items() for module in used]
    assert not wrong, "\n".join(wrong)


def test_no_script_of_the_installation_names_a_kind() -> None:
    scripts = sorted((ROOT / "requirements").glob("*.sh"))
    assert scripts
    # In a shell, a word need not be quoted; so here `suffix` is one.
    word = re.compile(rf"\b(?:{'|'.join(KINDS.keys() - {NoSpeculation.name})})\b")
    wrong = [path.name for path in scripts if word.search(path.read_text("utf-8"))]
    assert not wrong, wrong


def test_no_template_names_a_kind() -> None:
    """Neither in a quoted string, such as a comparison of a kind's name, nor in the text."""
    pattern = kind_pattern()
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
    for text in ("'suffix'", "'suffix lookup is slow'", "'vLLM has n-gram lookup'"):
        assert kinds_named_in(f"message = {text}"), text
    for text in ("path.suffix", "none", "'none'", "attempts", "speculation", "'no speculation'"):
        assert not kinds_named_in(f"value = {text}"), text
