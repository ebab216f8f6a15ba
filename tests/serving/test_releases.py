"""Other releases of vLLM: the table against the installed one, tags of images, and what is said."""

from typing import get_args

import pytest
from packaging.version import Version

from outrider.cli import doctor as doctor_module
from outrider.serving.commands.serve_command import read_serve_command
from outrider.serving.releases import FIRST, FIRST_OF_KEYS, release_in, release_support
from outrider.serving.vllm_version import WRITTEN_FOR
from outrider.speculators.kinds import KINDS, kind_named


def test_every_kind_has_a_row_and_the_installed_release_accepts_it() -> None:
    from vllm.config.speculative import SpeculativeConfig, SpeculativeMethod

    def names(literal: object) -> set[str]:
        inner = get_args(literal)
        return set().union(*map(names, inner)) if inner else {str(literal)}

    settings = {name: kind_named(name).vllm_settings(None, 1, "greedy", None) for name in KINDS}
    assert {name for name, words in settings.items() if words} == FIRST.keys()
    assert {words["method"] for words in settings.values() if words} <= names(SpeculativeMethod)
    assert FIRST_OF_KEYS.keys() <= SpeculativeConfig.__dataclass_fields__.keys()
    for first in (*FIRST.values(), *FIRST_OF_KEYS.values()):
        assert Version(first) <= Version(WRITTEN_FOR)


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("docker run --gpus all vllm/vllm-openai:v0.26.0 --model org/m", "0.26.0"),
        ("image: 'registry.example:5000/team/vllm-openai:0.18.1-cu129'", "0.18.1"),
        ("image: ghcr.io/team/vllm:v0.33.0rc1", "0.33.0rc1"),
        ("docker run vllm/vllm-openai:latest --model org/m", None),
        ("docker run vllm/vllm-openai@sha256:0123 --model org/m", None),
        ("docker run lmsys/sglang:v0.5.3 --model org/m", None),
        ("vllm serve org/vllm-model --port 8000", None),
    ],
)
def test_the_release_is_that_of_the_image(text: str, release: str | None) -> None:
    assert release_in(text) == release


@pytest.mark.parametrize(
    ("release", "has", "lacks"),
    [
        ("0.31.0", ["dspark"], ["not of", "removed"]),
        ("0.26.0", ["dspark"], ["not of"]),
        (
            "0.22.1",
            ["dflash", "not of dspark", "num_speculative_tokens_per_batch_size removed"],
            [],
        ),
        ("0.18.0", ["p_eagle", "not of dspark, dflash", "draft_sample_method and"], []),
        ("0.12.0", ["older than 0.13.0"], ["accepts"]),
        ("0.33.0", ["newer"], ["accepts", "not of"]),
    ],
)
def test_words_name_what_is_served_and_what_is_lost(
    release: str, has: list[str], lacks: list[str]
) -> None:
    words = release_support(release) or ""
    assert words.startswith(f"measured with {WRITTEN_FOR}, served with {release}: ")
    assert all(part in words for part in has) and not any(part in words for part in lacks)
    if release != "0.12.0":
        assert "swaps into running engines" in words


def test_the_tested_release_needs_no_words() -> None:
    assert release_support(WRITTEN_FOR) is release_support(f"{WRITTEN_FOR}+cpu") is None


def test_a_serve_command_notes_its_release_and_the_recipe_keeps_it() -> None:
    command = "docker run vllm/vllm-openai:v{} --model org/m"
    found = read_serve_command(command.format("0.22.0"))
    assert found.values["serving"]["production_release"] == "0.22.0"
    [note] = [note for note in found.notes if "0.22.0" in note]
    assert "not of dspark" in note
    same = read_serve_command(command.format(WRITTEN_FOR))
    assert "production_release" not in same.values["serving"]


def test_a_chart_has_the_release_next_to_the_repository() -> None:
    chart = 'repository: "org/vllm-openai"\n{}    tag: "v0.24.0-cu129"\nmodelURL: org/m\n'
    assert release_in(chart.format("")) == "0.24.0"
    assert release_in(chart.format("sidecar:\n    repository: fluent-bit\n")) is None


def test_doctor_says_what_an_untested_release_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_module, "vllm_version", lambda: "0.22.0+cpu")
    rows = {row.what: row for row in doctor_module._packages()}
    assert rows["vLLM"].state == "missing" and rows["another vLLM"].state == "note"
    assert "not of dspark" in rows["another vLLM"].found
    monkeypatch.setattr(doctor_module, "vllm_version", lambda: f"{WRITTEN_FOR}+cpu")
    assert "another vLLM" not in {row.what for row in doctor_module._packages()}
