"""Checks that the installed vLLM's source has a name, a signature or an order of statements.

The source is parsed, never imported, so that a check needs no GPU and no torch.

    Signature("vllm.v1.worker.gpu_worker", "Worker.execute_model", first=("scheduler_output",))
        .failure(Sources())     # None, or what is missing and where
"""

import ast
import functools
import importlib.util
from pathlib import Path
from typing import NamedTuple, Protocol

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Sources:
    """Syntax trees of vLLM's modules, read once each."""

    def __init__(self, package: Path | None = None) -> None:
        """`package` is the folder of the package `vllm`; None: the installed one."""
        if package is None:
            spec = importlib.util.find_spec("vllm")
            if spec is None or not spec.submodule_search_locations:
                raise ModuleNotFoundError("vllm is not installed")
            package = Path(spec.submodule_search_locations[0])
        self._package = package
        self.tree = functools.cache(self._tree)

    def _tree(self, module: str) -> ast.Module | None:
        path = self._package.joinpath(*module.split(".")[1:])
        for file in (path.with_suffix(".py"), path / "__init__.py"):
            if file.is_file():
                return ast.parse(file.read_text(encoding="utf-8"))
        return None

    def find(self, module: str, name: str) -> ast.AST | None:
        """The node of a class, function, import or assignment by its dotted name in a module."""
        scope: ast.AST | None = self.tree(module)
        for part in name.split("."):
            if scope is None:
                return None
            scope = _defined(scope, part)
        return scope


class Check(Protocol):
    """One line of the contract."""

    def failure(self, sources: Sources) -> str | None:
        """What is missing and where; None if nothing."""
        ...


class Name(NamedTuple):
    """A module has this class, function, method, import or variable."""

    module: str
    name: str

    def failure(self, sources: Sources) -> str | None:
        """None if the name exists."""
        return None if sources.find(*self) is not None else f"{self.module} has no {self.name}"


class Signature(NamedTuple):
    """A function has these parameters, and requires no others."""

    module: str
    name: str
    first: tuple[str, ...] = ()
    """The first ones, in order, without self."""
    named: tuple[str, ...] = ()
    """Further ones that we name."""
    called: bool = False
    """Whether we call it, so that any other parameter needs a default."""

    def failure(self, sources: Sources) -> str | None:
        """None if the function exists and has the parameters."""
        node = sources.find(self.module, self.name)
        place = f"{self.module}: {self.name}"
        if not isinstance(node, Function):
            return f"{self.module} has no function {self.name}"
        positional = [*node.args.posonlyargs, *node.args.args]
        required = positional[: len(positional) - len(node.args.defaults)]
        if positional and positional[0].arg in ("self", "cls"):
            positional, required = positional[1:], required[1:]
        names = [argument.arg for argument in positional]
        if tuple(names[: len(self.first)]) != self.first:
            return f"{place} begins with {names[: len(self.first)]} instead of {list(self.first)}"
        every = {*names, *(argument.arg for argument in node.args.kwonlyargs)}
        if missing := [name for name in self.named if name not in every]:
            return f"{place} has no parameter {', '.join(missing)}"
        known = {*self.first, *self.named}
        more = [argument.arg for argument in required if argument.arg not in known]
        if self.called and more:
            return f"{place} requires {', '.join(more)}, which is not passed"
        return None


class Attribute(NamedTuple):
    """A class declares or assigns this attribute, or has it as a method."""

    module: str
    cls: str
    attribute: str

    def failure(self, sources: Sources) -> str | None:
        """None if the class and the attribute exist."""
        node = sources.find(self.module, self.cls)
        if not isinstance(node, ast.ClassDef):
            return f"{self.module} has no class {self.cls}"
        if _defined(node, self.attribute) is not None:
            return None
        assigned = (
            target
            for inner in ast.walk(node)
            for target in _targets(inner)
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self"
        )
        if any(target.attr == self.attribute for target in assigned):
            return None
        return f"{self.module}: {self.cls} has no attribute {self.attribute}"


class Inherits(NamedTuple):
    """A class has this base, from which we take methods."""

    module: str
    cls: str
    base: str

    def failure(self, sources: Sources) -> str | None:
        """None if the class names the base."""
        node = sources.find(self.module, self.cls)
        if not isinstance(node, ast.ClassDef):
            return f"{self.module} has no class {self.cls}"
        if self.base in (ast.unparse(base) for base in node.bases):
            return None
        return f"{self.module}: {self.cls} does not inherit {self.base}"


class Order(NamedTuple):
    """A function or class contains these pieces of source in this order."""

    module: str
    name: str
    pieces: tuple[str, ...]
    """As `ast.unparse` writes them: one line a statement, single quotes."""

    def failure(self, sources: Sources) -> str | None:
        """None if each piece follows the one before it."""
        node = sources.find(self.module, self.name)
        if node is None:
            return f"{self.module} has no {self.name}"
        text, place = ast.unparse(node), 0
        for index, piece in enumerate(self.pieces):
            found = text.find(piece, place)
            if found < 0:
                after = f" after `{self.pieces[index - 1]}`" if index else ""
                return f"{self.module}: {self.name} has no `{piece}`{after}"
            place = found + len(piece)
        return None


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        tuples = (t.elts if isinstance(t, ast.Tuple) else [t] for t in node.targets)
        return [target for group in tuples for target in group]
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def _defined(scope: ast.AST, name: str) -> ast.AST | None:
    """What `name` is in a module or class, also under `if` and `try`."""
    found = None
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            matches = node.name == name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            matches = any((alias.asname or alias.name) == name for alias in node.names)
        elif targets := _targets(node):
            matches = any(isinstance(t, ast.Name) and t.id == name for t in targets)
        elif isinstance(node, ast.If | ast.Try):
            found = _defined(node, name) or found
            continue
        else:
            continue
        found = node if matches else found
    return found
