"""Messages name commands and options that exist."""

import ast
import re
from pathlib import Path

import pytest

from tests.test_rooms import LAYERS, ROOT

COMMANDS = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
"""Generated from the commands (tests/tools/test_reference.py)."""

OF_OTHERS = {
    "--log-requests": "SGLang",
    "--log-requests-level": "SGLang",
    "--log-requests-format": "SGLang",
    "--include-body": "Helicone",
    "--shm-size": "Docker",
    "--ipc": "Docker",
    "--env-file": "Docker",
    "--no-deps": "pip",
    "--object-store-memory": "Ray",
    "--gpus-per-task": "Slurm",
    "--gpu-bind": "Slurm",
}
"""Options of other programs than vLLM in messages, and the program."""


def messages(path: Path) -> list[str]:
    """Strings of a module with more than one word, f-strings as one; no docstrings."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = [part.value for part in node.values if isinstance(part, ast.Constant)]
            prose |= {id(part) for part in node.values}
            found.append(" … ".join(map(str, parts)))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            found.append(node.value)
    return [text for text in found if " " in text.strip()]


@pytest.fixture(scope="module")
def of_vllm() -> set[str]:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    actions = make_arg_parser(FlexibleArgumentParser())._actions
    return {option for action in actions for option in action.option_strings}


PATHS = [path for room in LAYERS for path in sorted((ROOT / room).rglob("*.py"))]


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_messages_name_what_exists(path: Path, of_vllm: set[str]) -> None:
    verbs = set(re.findall(r"^## outrider ([a-z]+)", COMMANDS, flags=re.MULTILINE))
    of_every_program = {"--help", "--version"}
    options = set(re.findall(r"--[a-z][a-z-]+", COMMANDS)) | of_every_program
    options |= OF_OTHERS.keys() | of_vllm
    for text in messages(path):
        aliases = re.findall(r"\b\w+-speculator\b", text)
        assert not aliases, text
        assert set(re.findall(r"`outrider ([a-z]+)", text)) <= verbs, text
        named = re.findall(r"(?<![\w/-])--[a-z][a-z-]+(?![\w.=]*[$\"])", text)
        assert set(named) <= options, text
