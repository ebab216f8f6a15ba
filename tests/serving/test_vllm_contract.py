"""The installed vLLM has every private name, signature and order that Outrider relies on."""

import ast
from pathlib import Path

import pytest

from outrider.serving.vllm_hooks.contract import CONTRACT, check_contract
from outrider.serving.vllm_hooks.source_checks import (
    Attribute,
    Check,
    Inherits,
    Name,
    Order,
    Signature,
    Sources,
)

HOOKS = Path(__file__).resolve().parents[2] / "serving" / "vllm_hooks"
SOURCES = Sources()

TOY = """
if True:
    from .parts import helper as assist

class Base:
    field: int

class Runner(Base):
    def __init__(self):
        self.state, self.other = None, 1

    def run(self, output, extra=None, *, late=False):
        self.state = State(output, extra)
        finish(self.state)
        self.state = None
"""


ENTRIES = [(user, check) for user, checks in CONTRACT.items() for check in checks]


@pytest.mark.parametrize(("user", "check"), ENTRIES, ids=lambda value: str(value)[:90])
def test_the_installed_vllm_has(user: str, check: Check) -> None:
    assert (failure := check.failure(SOURCES)) is None, f"{user}: {failure}"


@pytest.mark.parametrize("hook", sorted(HOOKS.glob("*.py")), ids=lambda path: path.name)
def test_what_the_hooks_import_of_vllm_is_in_the_contract(hook: Path) -> None:
    imports = {
        alias.name if node.module != "vllm.utils" else f"{node.module}.{alias.name}"
        for node in ast.walk(ast.parse(hook.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "vllm"
        for alias in node.names
    }
    listed = " ".join(str(check) for _, check in ENTRIES)
    assert {name for name in imports if name not in listed} == set()


@pytest.fixture
def toy(tmp_path: Path) -> Sources:
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "runner.py").write_text(TOY)
    return Sources(package)


RUN = "vllm.runner", "Runner.run"
HOLDS: list[Check] = [
    Name("vllm.runner", "assist"),
    Name(*RUN),
    Signature(*RUN, ("output",), ("late",)),
    Signature(*RUN, ("output",), called=True),
    Attribute("vllm.runner", "Runner", "other"),
    Attribute("vllm.runner", "Base", "field"),
    Inherits("vllm.runner", "Runner", "Base"),
    Order(*RUN, ("self.state = State(", "finish(", "self.state = None")),
]
FAILS: list[tuple[Check, str]] = [
    (Name("vllm.runner", "helper"), "vllm.runner has no helper"),
    (Name("vllm.walker", "Runner"), "vllm.walker has no Runner"),
    (Signature("vllm.runner", "Runner"), "vllm.runner has no function Runner"),
    (Signature(*RUN, ("extra",)), "begins with ['output'] instead of ['extra']"),
    (Signature(*RUN, named=("early",)), "has no parameter early"),
    (Signature(*RUN, called=True), "requires output, which is not passed"),
    (Attribute("vllm.runner", "Runner", "third"), "Runner has no attribute third"),
    (Inherits("vllm.runner", "Base", "Runner"), "Base does not inherit Runner"),
    (Order(*RUN, ("finish(", "State(")), "Runner.run has no `State(` after `finish(`"),
    (Order(*RUN, ("start(",)), "Runner.run has no `start(`"),
]


@pytest.mark.parametrize("check", HOLDS, ids=str)
def test_a_check_holds(toy: Sources, check: Check) -> None:
    assert check.failure(toy) is None


@pytest.mark.parametrize(("check", "message"), FAILS, ids=str)
def test_a_check_fails_and_names_what_is_missing(toy: Sources, check: Check, message: str) -> None:
    failure = check.failure(toy)
    assert failure is not None and message in failure


def test_every_missing_name_is_one_failure_with_its_user(toy: Sources) -> None:
    failures = check_contract(toy)
    assert len(failures) == len(ENTRIES)
    assert any(
        line.startswith("draft_recorder.py: vllm.v1.worker.gpu.model_runner has no class")
        for line in failures
    )
