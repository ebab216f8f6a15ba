"""Recipes from somebody else: refused in a message that names file, key or value.

A recipe may be read and planned without running its code, and without reading or writing what it
names outside of the run.
"""

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from outrider.common.errors import OutriderError
from outrider.common.inert import printable
from outrider.pipeline.recipe.load import load_recipe

pytestmark = pytest.mark.attack("recipes")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(path: str | Path, *words: str) -> str:
    """The message that refuses a recipe, as the commands print it."""
    with pytest.raises(OutriderError) as caught:
        load_recipe(str(path), [*words])
    message = printable(str(caught.value))
    assert all(line.isprintable() for line in message.split("\n")), message
    return message


TEXTS = {
    "python-object": "a: !!python/object/apply:os.system ['touch ran']",
    "python-name": "a: !!python/name:os.system",
    "python-module": "a: !!python/module:evil",
    "own-tag": "a: !evil x",
    "binary": "traffic: !!binary aGVsbG8=",
    "set": "traffic: !!set {a, b}",
    "two-documents": "traffic: {path: a}\n---\nname: b",
    "directive": "%EVIL 1\n---\na: b",
    "alias-of-a-section": "traffic: &t {path: a}\nprivacy: *t",
    "merge": "base: &b {path: a}\ntraffic:\n  <<: *b",
    "deep-flow": "traffic: " + "{a: " * 2_000 + "1" + "}" * 2_000,
    "deep-block": "\n".join(" " * depth + "a:" for depth in range(1_500)),
    "list-key": "? [a]\n: b",
    "mapping-key": "? {a: b}\n: c",
    "number-key": "traffic: {path: a}\n1: 2",
    "null-key": "traffic: {path: a}\n~: 2",
    "date-value": "traffic: {path: a}\nname: 2026-13-01",
    "digits": "traffic: {path: a}\nsplit: {seed: " + "9" * 5_000 + "}",
    "infinite": "traffic: {path: a}\ntraining: {learning_rate: .inf}",
    "not-a-number": "traffic: {path: a}\ntraining: {learning_rate: .nan}",
    "negative": "traffic: {path: a}\ntraining: {epochs: -1}",
    "huge": "traffic: {path: a}\ntraining: {epochs: 1e300}",
    "infinite-1e400": "traffic: {path: a}\ntraining: {learning_rate: 1e400}",
    "escape-in-a-key": 'traffic: {path: a}\n"\\e]0;pwned\\a": 1',
    "escape-in-a-value": 'traffic: {path: a}\nname: "\\e]0;pwned\\a"',
    "line-break-in-a-key": 'traffic: {path: a}\n"a\\nb": 1',
    "tab": "traffic:\n\tpath: a",
    "only-a-list": "- traffic",
    "only-a-text": "hello",
}


@pytest.mark.parametrize("name", TEXTS)
def test_yaml(folder: Path, name: str) -> None:
    (folder / "mine.yaml").write_text(TEXTS[name])
    assert "mine.yaml" in refused("mine.yaml")
    assert [path.name for path in folder.iterdir()] == ["mine.yaml"]


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfea\x00", b"\x00\x01\x02", b"a: \x80", b"\x1f\x8b\x08\x00"],
    ids=["UTF-16", "NUL", "Latin-1", "gzip"],
)
def test_bytes(folder: Path, content: bytes) -> None:
    (folder / "mine.yaml").write_bytes(content)
    assert "mine.yaml" in refused("mine.yaml")


NAMES = ["../up", "..", ".", "/etc", "a/b", "-rf", "", " ", "a\nb", "a\u202eb", "$(id)", "a" * 300]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_the_name_of_a_run(folder: Path, name: str) -> None:
    recipe = {"traffic": {"path": "a"}, "name": name}
    (folder / "mine.yaml").write_text(yaml.safe_dump(recipe))
    assert "name" in refused("mine.yaml")


VALUES: dict[str, Any] = {
    "extends": "../../../etc/passwd",
    "extends ": ["a", "b"],
    "extends  ": "mine.yaml",
    "serving.engine.extra_arguments": {"worker_cls": "evil.Worker"},
    "serving.engine.extra_arguments ": {"middleware": "evil.M"},
    "serving.engine.extra_arguments  ": {"compilation_config": '{"inductor_passes": {"x": "e"}}'},
    "serving.engine.extra_arguments   ": {"quantization": "--middleware=evil"},
    "serving.engine.environment": {"LD_PRELOAD": "evil.so"},
    "serving.engine.environment ": {"HF_TOKEN": "evil"},
    "target.trust_remote_code": True,
    "privacy.retention": "delete /",
    "speculator.kind": "evil.module",
    "speculator.depth": 10**9,
    "eval.concurrency": [],
    "eval.concurrency ": [0],
    "split.heldout_fraction": 2,
}
"""Values by key. Spaces after a key only make it another."""


@pytest.mark.parametrize("key", VALUES)
def test_a_value(folder: Path, key: str) -> None:
    recipe: dict[str, Any] = {"traffic": {"path": "a"}}
    section = recipe
    *parents, last = key.strip().split(".")
    for parent in parents:
        section = section.setdefault(parent, {})
    section[last] = VALUES[key]
    (folder / "mine.yaml").write_text(yaml.safe_dump(recipe))
    assert last in refused("mine.yaml")


WORDS = [
    "=3",
    "training=3",
    "training.=3",
    ".training=3",
    "a" * 10_000 + "=3",
    "training.epochs=!!python/name:os.system",
    "training.epochs=" + "[" * 5_000,
    "extends=../../etc/passwd",
    "name=../up",
    "\x1b]0;pwned\x07=1",
    "training.learning_rate=.inf",
]


@pytest.mark.parametrize("word", WORDS, ids=range(len(WORDS)))
def test_a_word_of_the_command_line(folder: Path, word: str) -> None:
    refused("resume_screening", word)


def test_the_file_is_a_pipe_a_device_or_a_folder(folder: Path) -> None:
    os.mkfifo(folder / "pipe.yaml")
    (folder / "zero.yaml").symlink_to("/dev/zero")
    (folder / "folder.yaml").mkdir()
    for name in ("pipe.yaml", "zero.yaml", "folder.yaml"):
        assert name in refused(name)


@pytest.mark.parametrize("name", ["evil:run", "evil.inner:run", "./evil.py:run", "evil"])
def test_reading_a_recipe_runs_none_of_its_code(folder: Path, name: str) -> None:
    (folder / "evil").mkdir()
    for path in ("evil/__init__.py", "evil/inner.py", "evil.py"):
        (folder / path).write_text("open('ran', 'w').close()\n")
    recipe = {"traffic": {"path": "a"}, "eval": {"task": name}}
    (folder / "mine.yaml").write_text(yaml.safe_dump(recipe))
    assert load_recipe("mine.yaml").recipe.eval.task == name
    assert not (folder / "ran").exists()
    assert "evil" not in sys.modules
