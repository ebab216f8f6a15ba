"""The section `speculator`: which kinds may be listed together."""

import pytest
from pydantic import ValidationError

from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.kinds import DEFAULT_KIND, lookup_names


@pytest.mark.parametrize(
    "listed", [[DEFAULT_KIND, *lookup_names()], [DEFAULT_KIND, lookup_names()[0]], lookup_names()]
)
def test_lookups_may_be_listed_with_trained_kinds_or_alone(listed: list[str]) -> None:
    section = SpeculatorConfig(kind=listed)
    assert section.candidates == tuple(listed)
    assert section.kinds == tuple(name for name in listed if name == DEFAULT_KIND)


@pytest.mark.parametrize(
    "listed",
    [
        [DEFAULT_KIND, DEFAULT_KIND],
        [lookup_names()[0]] * 2,
        [],
        [DEFAULT_KIND, "medusa"],
    ],
)
def test_other_lists_are_refused(listed: list[str]) -> None:
    with pytest.raises(ValidationError, match="list kinds, each once"):
        SpeculatorConfig(kind=listed)


def test_settings_are_those_of_a_lookup_that_is_the_base() -> None:
    section = SpeculatorConfig(base="ngram", base_settings={"prompt_lookup_max": 5})
    assert section.base_settings == {"prompt_lookup_max": 5}
    for base, has in (("ngram", "has prompt_lookup_min, prompt_lookup_max"), (None, "has no set")):
        with pytest.raises(ValidationError, match=rf"base_settings\.depth: .*{has}.*leave the key"):
            SpeculatorConfig(base=base, base_settings={"depth": 1})
