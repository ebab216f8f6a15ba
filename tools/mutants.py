"""Counts the mutants of the numerical core that its fast tests kill.

    python -m tools.mutants --count 100 --seed 0

Each mutant has one changed operator, constant, comparison or condition in a copy of the repository.
The tests of its module run until the first failure; a mutant that passes all of them survives and
is printed. A mutant takes about five seconds of one core.
"""

import argparse
import ast
import contextlib
import importlib
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

TESTS = {
    "speculators/unroll.py": [
        "tests/speculators/test_unroll.py",
        "tests/speculators/kinds/eagle3/test_eagle3_unroll.py",
    ],
    "speculators/acceptance.py": ["tests/speculators/test_acceptance.py"],
    "training/losses.py": ["tests/training/test_losses.py", "tests/training/test_objective.py"],
    "training/packing.py": ["tests/training/test_packing.py", "tests/training/test_batches.py"],
    "eval/replay/replay.py": ["tests/eval/replay/test_replay.py"],
    "eval/stats/clusters.py": ["tests/eval/stats"],
    "eval/stats/speed_ratio.py": ["tests/eval/stats"],
    "eval/stats/sequential.py": ["tests/eval/stats"],
    "eval/gate.py": ["tests/eval/test_gate.py"],
}
"""Core modules and the tests that must detect a change in them."""

LIMIT_S = 120
"""Limit of the CPU time of a mutant's tests, for endless loops. Tests of a core module take up to
30 s. Elapsed time would count slow machines as detected mutants."""

LIBRARIES = (
    *("torch", "transformers", "datasets", "deepspeed", "hypothesis", "scipy.stats"),
    *("vllm.v1.sample.ops.topk_topp_sampler", "vllm.v1.spec_decode.ngram_proposer"),
)
"""What the tests import, which takes up to ten seconds; loaded once for all forks."""

SWAPS = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.And: ast.Or,
    ast.Or: ast.And,
}


def mutations(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Mutates the tree in place; yields each mutation's line and description."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp | ast.BoolOp | ast.AugAssign) and type(node.op) in SWAPS:
            before = node.op
            node.op = SWAPS[type(before)]()
            yield node.lineno, f"{type(before).__name__} -> {type(node.op).__name__}"
            node.op = before
        elif isinstance(node, ast.Compare) and type(node.ops[0]) in SWAPS:
            before = node.ops[0]
            node.ops[0] = SWAPS[type(before)]()
            yield node.lineno, f"{type(before).__name__} -> {type(node.ops[0]).__name__}"
            node.ops[0] = before
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
            node.value += 1
            yield node.lineno, f"{node.value - 1} -> {node.value}"
            node.value -= 1
        elif isinstance(node, ast.IfExp | ast.If):
            before = node.test
            node.test = ast.UnaryOp(ast.Not(), before)
            yield node.lineno, "condition negated"
            node.test = before


def sampled(root: Path, count: int, seed: int) -> list[tuple[str, int, str, str]]:
    """Draws `count` mutants: module, line, description, mutated source."""
    mutants = []
    for module in TESTS:
        tree = ast.parse((root / module).read_text(encoding="utf-8"))
        mutants += [(module, line, what, ast.unparse(tree)) for line, what in mutations(tree)]
    return sorted(random.Random(seed).sample(mutants, count))


def passes(root: Path, tests: list[str]) -> bool:
    """Whether the tests pass in a fork, which has the libraries."""
    child = os.fork()
    if child == 0:
        import pytest

        os.chdir(root)
        sys.path.insert(0, str(root))
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_S, LIMIT_S))
        words = ["-x", "-q", "-n", "0", "-m", "not engine and not slow"]
        words += ["-p", "no:cacheprovider", "-p", "no:timeout"]
        os._exit(int(pytest.main([*words, *tests]) != 0))
    return os.waitpid(child, 0)[1] == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    sys.dont_write_bytecode = True
    for library in LIBRARIES:
        with contextlib.suppress(ImportError):  # vLLM is optional
            importlib.import_module(library)
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        archive = subprocess.run(["git", "archive", "HEAD"], capture_output=True, check=True)
        subprocess.run(["tar", "x", "-C", scratch], input=archive.stdout, check=True)
        (root / "outrider").mkdir(exist_ok=True)
        (root / "outrider" / "__init__.py").touch()
        for room in root.iterdir():
            if room.is_dir() and (room / "__init__.py").is_file() and room.name != "outrider":
                (root / "outrider" / room.name).symlink_to(room)
        every = sorted({test for tests in TESTS.values() for test in tests})
        if not passes(root, every):
            sys.exit("the tests fail without a mutant")
        mutants = sampled(root, args.count, args.seed)
        survivors = 0
        for module, line, what, source in mutants:
            original = root / f"{module}.original"
            shutil.copyfile(root / module, original)
            (root / module).write_text(source, encoding="utf-8")
            if passes(root, TESTS[module]):
                survivors += 1
                print(f"survived: {module}:{line}: {what}", flush=True)
            shutil.move(original, root / module)
    print(f"{args.count - survivors} of {args.count} mutants killed (seed {args.seed})")


if __name__ == "__main__":
    main()
