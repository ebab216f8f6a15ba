"""Rewritten assertions are cached once and again when their module changes."""

from pathlib import Path

import pytest

from tests.rewritten_asserts import cache_rewritten

pytest_plugins = ("pytester",)


def test_a_changed_module_is_rewritten_again(
    pytestconfig: pytest.Config, pytester: pytest.Pytester
) -> None:
    file = pytester.makepyfile("def test_it():\n    assert 1 + 1 == 2\n")
    folder = Path(file).parent
    assert [cache_rewritten(pytestconfig, folder) for _ in range(2)] == [1, 0]
    file.write_text("def test_it():\n    assert 1 + 1 == 3\n")
    assert cache_rewritten(pytestconfig, folder) == 1
    result = pytester.runpytest_inprocess()
    result.stdout.fnmatch_lines(["*assert (1 + 1) == 3*"])
    assert cache_rewritten(pytestconfig, folder) == 0
