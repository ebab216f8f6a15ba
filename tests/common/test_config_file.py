"""YAML files that are small but stand for much, and values that are none."""

import datetime

import pytest
import yaml

from outrider.common.config_file import read_value, read_yaml
from outrider.common.errors import OutriderError

BOMB = "a: &a [1, 1]\n" + "\n".join(
    f"{name}: &{name} [*{before}, *{before}]"
    for before, name in zip("abcdefghijklmnopqrstuvwxy", "bcdefghijklmnopqrstuvwxyz", strict=True)
)


@pytest.mark.attack("recipes")
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, r"x.yaml:2: not valid YAML: `\*a` repeats another value"),
        ("base: &b {a: 1}\nrun:\n  <<: *b\n", r"x.yaml:3: not valid YAML: `\*b` repeats"),
        ("a: &a [*a]", r"x.yaml:1: not valid YAML: `\*a`"),
        ("a: \0", r"x.yaml: not valid YAML: unacceptable character #x0000"),
        ("a: " + "[" * 5000 + "]" * 5000, "x.yaml: not a recipe: nested too deeply"),
        ("a: " + "9" * 5000, "x.yaml:1: .* is not a YAML value"),
    ],
)
def test_files_that_would_not_end_are_refused(tmp_path, text, message):
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(OutriderError, match=message):
        read_yaml(path)


def test_a_file_above_a_megabyte_is_not_read(tmp_path):
    path = tmp_path / "log.yaml"
    path.write_text("# comment\n" * 100_000 + "a: 1\n")
    with pytest.raises(OutriderError, match=r"log\.yaml: above 1 MB, so it is not a recipe; give"):
        read_yaml(path)
    path.write_text("# comment\n" * 50_000 + "a: 1\n")
    assert read_yaml(path)[0] == {"a": 1}


@pytest.mark.attack("recipes")
@pytest.mark.parametrize("text", ["[&a 1, *a]", "[" * 5000, "9" * 5000, "2026-13-01"])
def test_arguments_that_are_no_value(text):
    with pytest.raises(yaml.YAMLError):
        read_value(text)


def test_a_library_that_changes_yaml_for_everybody_changes_nothing_here(monkeypatch):
    """lm-format-enforcer does this when it is imported."""
    constructors = yaml.SafeLoader.yaml_constructors
    text = constructors["tag:yaml.org,2002:str"]
    monkeypatch.setitem(constructors, "tag:yaml.org,2002:timestamp", text)
    assert read_value("2026-12-01") == datetime.date(2026, 12, 1)
    with pytest.raises(yaml.YAMLError):
        read_value("2026-13-01")
