"""Sections by keyword are the command line's overrides; notes go to the package's logger."""

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import outrider
from outrider.pipeline.recipe.load import load_recipe

LEAVES: dict[str, st.SearchStrategy[Any]] = {
    "name": st.from_regex(r"[a-z]{1,9}", fullmatch=True),
    "traffic.model": st.none() | st.text(max_size=20).filter(str.strip),
    "training.learning_rate": st.floats(1e-9, 1.0),
    "training.epochs": st.integers(1, 10**6),
    "eval.concurrency": st.lists(st.integers(1, 8), min_size=1, max_size=3, unique=True),
}


def nested(values: dict[str, Any]) -> dict[str, Any]:
    """`{"a.b": 1}` as `{"a": {"b": 1}}`."""
    sections: dict[str, Any] = {}
    for key, value in values.items():
        *folders, last = key.split(".")
        section = sections
        for folder in folders:
            section = section.setdefault(folder, {})
        section[last] = value
    return sections


@given(st.fixed_dictionaries({}, optional=LEAVES))
def test_a_section_sets_the_values_as_they_are(values: dict[str, Any]) -> None:
    words = list(outrider._overrides_of(nested(values)))
    recipe = load_recipe("resume_screening", words).recipe.model_dump(mode="json")
    for key, value in values.items():
        loaded: Any = recipe
        for part in key.split("."):
            loaded = loaded[part]
        assert loaded == value, key


def test_a_path_is_text() -> None:
    assert [*outrider._overrides_of({"traffic": {"path": Path("logs")}})] == ["traffic.path=logs"]


def test_notes_are_logged_and_not_printed(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    # A command that another test ran in this process prints them.
    monkeypatch.setattr(logging.getLogger("outrider"), "handlers", [])
    monkeypatch.setattr(logging.getLogger("outrider"), "propagate", True)
    caplog.set_level(logging.INFO, "outrider")
    command = tmp_path / "serve.sh"
    command.write_text("vllm serve /m --port 8000\n")
    outrider._load("resume_screening", [], str(command))
    assert "serve command: " in caplog.text
    assert capfd.readouterr() == ("", "")


def test_rounds_are_checked_before_anything_is_read() -> None:
    with pytest.raises(outrider.OutriderError, match="--rounds 0: give 1 or more"):
        outrider.adapt_endpoint("nowhere.yaml", endpoint="nowhere.yaml", rounds=0)


def test_what_deploy_refers_to_exists() -> None:
    """Options of the command that are other functions."""
    from outrider.live import local, manifests

    documented = str(outrider.deploy.__doc__)
    for module, names in {
        manifests: ["write_manifest"],
        local: ["local_endpoint", "generate_load"],
    }.items():
        for name in names:
            assert f"`{module.__name__.rpartition('.')[2]}.{name}`" in documented
            assert callable(getattr(module, name))
