"""The example calls in the modules' docstrings fit the functions that they call.

An example shows a newcomer how a module is used, so it must not be of an earlier signature. The
modules are parsed, not imported: a call is compared with the parameters of the definition that its
name refers to, in the same module or, if the name is defined once, in any. Run it alone:
python -m pytest tests/test_examples.py
"""

import ast
import textwrap
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache

import pytest

from tests.test_rooms import LAYERS, ROOT

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass
class Parameters:
    """The parameters of a function, without `self`."""

    positional: list[str]
    required: set[str]
    by_name: set[str]
    any_positional: bool = False
    any_name: bool = False

    @classmethod
    def of(cls, function: ast.FunctionDef | ast.AsyncFunctionDef, skip: int = 0) -> "Parameters":
        """The parameters of a definition after the first `skip`."""
        arguments = function.args
        positional = [argument.arg for argument in [*arguments.posonlyargs, *arguments.args]]
        required = positional[skip : len(positional) - len(arguments.defaults)]
        for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            required += [argument.arg] if default is None else []
        return cls(
            positional=positional[skip:],
            required=set(required),
            by_name={*positional[skip:], *(argument.arg for argument in arguments.kwonlyargs)},
            any_positional=arguments.vararg is not None,
            any_name=arguments.kwarg is not None,
        )

    def complaint(self, call: ast.Call) -> str | None:
        """Why the call does not fit; None if it does, as far as it is written out."""
        names = {keyword.arg for keyword in call.keywords if keyword.arg is not None}
        unknown = names - self.by_name
        if unknown and not self.any_name:
            return f"has no parameter {', '.join(sorted(unknown))}"
        elided = [*call.args, *(keyword.value for keyword in call.keywords if not keyword.arg)]
        if any(isinstance(value, ast.Starred) or is_ellipsis(value) for value in elided):
            return None
        if len(call.args) > len(self.positional) and not self.any_positional:
            return f"takes {len(self.positional)} positional arguments, not {len(call.args)}"
        passed = {*self.positional[: len(call.args)], *names}
        if any(keyword.arg is None for keyword in call.keywords):
            return None
        missing = self.required - passed
        return f"needs {', '.join(sorted(missing))}" if missing else None


def is_ellipsis(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is Ellipsis


@dataclass
class Sources:
    """All definitions at the top of the product's modules."""

    by_module: dict[str, dict[str, Definition]] = field(default_factory=dict)
    by_name: dict[str, list[Definition]] = field(default_factory=lambda: defaultdict(list))
    examples: dict[str, str] = field(default_factory=dict)

    def find(self, module: str, name: str) -> Definition | None:
        """What a name in an example refers to; None if that is not certain."""
        local = self.by_module[module].get(name)
        anywhere = self.by_name.get(name, [])
        return local or (anywhere[0] if len(anywhere) == 1 else None)

    def method(self, module: str, owner: ast.ClassDef, name: str) -> Definition | None:
        """A method of a class or of its bases."""
        for node in owner.body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                return node
        for base in owner.bases:
            parent = self.find(module, ast.unparse(base))
            if isinstance(parent, ast.ClassDef):
                inherited = self.method(module, parent, name)
                if inherited is not None:
                    return inherited
        return None

    def parameters(self, module: str, called: Definition) -> Parameters | None:
        """The parameters of a function, or those with which a class is constructed."""
        if not isinstance(called, ast.ClassDef):
            return Parameters.of(called)
        init = self.method(module, called, "__init__")
        if isinstance(init, ast.FunctionDef):
            return Parameters.of(init, skip=1)
        decorators = " ".join(map(ast.unparse, called.decorator_list))
        bases = [ast.unparse(base) for base in called.bases]
        if "dataclass" not in decorators and bases != ["NamedTuple"]:
            return None
        if bases not in ([], ["NamedTuple"]):  # fields of bases come first
            return None
        fields = [node for node in called.body if isinstance(node, ast.AnnAssign)]
        fields = [
            node for node in fields if not ast.unparse(node.annotation).startswith("ClassVar")
        ]
        names = [ast.unparse(node.target) for node in fields]
        required = {ast.unparse(node.target) for node in fields if node.value is None}
        return Parameters(names, required, set(names))


@cache
def sources() -> Sources:
    read = Sources()
    for room in LAYERS:
        for path in sorted((ROOT / room).rglob("*.py")):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            module = path.relative_to(ROOT).as_posix()
            definitions = {node.name: node for node in tree.body if isinstance(node, Definition)}
            read.by_module[module] = definitions
            for name, node in definitions.items():
                read.by_name[name].append(node)
            read.examples[module] = ast.get_docstring(tree) or ""
    return read


def code_of(docstring: str) -> ast.Module:
    """The statements of a docstring's examples; paragraphs that are no Python are left out."""
    statements: list[ast.stmt] = []
    for paragraph in docstring.split("\n\n")[1:]:
        code = textwrap.dedent(paragraph)
        for part in (code, *code.splitlines()):
            try:
                statements += ast.parse(part).body
            except (SyntaxError, ValueError):
                continue
            if part is code:
                break
    return ast.Module(statements, [])


def types_in(module: str, code: ast.Module) -> dict[str, ast.ClassDef]:
    """The classes of an example's variables, where they follow from definitions."""
    types: dict[str, ast.ClassDef] = {}
    for node in ast.walk(code):
        targets: list[tuple[ast.expr | None, ast.expr]] = []
        if isinstance(node, ast.Assign):
            targets = [(node.targets[0], node.value)]
        if isinstance(node, ast.With):
            targets = [(item.optional_vars, item.context_expr) for item in node.items]
        for target, value in targets:
            made = class_of(module, value, types)
            if isinstance(target, ast.Name) and made is not None:
                types[target.id] = made
    return types


def class_of(module: str, value: ast.expr, types: dict[str, ast.ClassDef]) -> ast.ClassDef | None:
    """The class of an expression; for the name of a class, the class itself."""
    called: Definition | None = None
    if isinstance(value, ast.Name):
        called = types.get(value.id) or sources().find(module, value.id)
        return called if isinstance(called, ast.ClassDef) else None
    if isinstance(value, ast.Call):
        called = definition(module, value, types)
    if isinstance(called, ast.FunctionDef) and called.returns is not None:
        called = sources().find(module, ast.unparse(called.returns).strip("'\""))
    return called if isinstance(called, ast.ClassDef) else None


def definition(module: str, call: ast.Call, types: dict[str, ast.ClassDef]) -> Definition | None:
    """The definition that a call refers to; None if that is not certain."""
    if isinstance(call.func, ast.Name):
        return sources().find(module, call.func.id)
    if isinstance(call.func, ast.Attribute):
        owner = class_of(module, call.func.value, types)
        if owner is not None:
            return sources().method(module, owner, call.func.attr)
    return None


def calls_of(module: str, docstring: str) -> Iterator[tuple[ast.Call, Parameters]]:
    """The calls in a module's examples whose definition is known."""
    code = code_of(docstring)
    types = types_in(module, code)
    for call in ast.walk(code):
        if not isinstance(call, ast.Call):
            continue
        called = definition(module, call, types)
        if called is None:
            continue
        if isinstance(call.func, ast.Attribute) and isinstance(called, ast.FunctionDef):
            decorators = set(map(ast.unparse, called.decorator_list))
            yield call, Parameters.of(called, skip="staticmethod" not in decorators)
            continue
        parameters = sources().parameters(module, called)
        if parameters is not None:
            yield call, parameters


def complaints(module: str, docstring: str) -> list[str]:
    """The calls that do not fit."""
    reasons = [(call, takes.complaint(call)) for call, takes in calls_of(module, docstring)]
    return [f"{module}: {ast.unparse(call)}: {why}" for call, why in reasons if why]


def test_examples_fit_the_functions_that_they_call() -> None:
    wrong = [line for item in sources().examples.items() for line in complaints(*item)]
    assert not wrong, "\n".join(wrong)


def test_many_examples_are_compared() -> None:
    known = [call for item in sources().examples.items() for call in calls_of(*item)]
    assert len(known) > 350


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("unroll_anchors(chain, ends, slots)", "needs depth"),
        ("unroll_anchors(chain, ends, ids, inputs, 4)", "takes 4 positional arguments, not 5"),
        ("unroll_anchors(chain, ends, slots, depth=4, width=3)", "has no parameter width"),
        ("Slots(token_ids_BT, inputs_BTX)", "needs anchor_BT, position_BT, sequence_BT"),
    ],
)
def test_an_example_of_another_signature_is_found(call: str, why: str) -> None:
    docstring = f"A module.\n\n    result = {call}\n    ...\n"
    assert complaints("speculators/unroll.py", docstring) == [
        f"speculators/unroll.py: {call}: {why}"
    ]
    assert not complaints("speculators/unroll.py", "A module.\n\n    valid_BT(sequence_BT, 3)")
