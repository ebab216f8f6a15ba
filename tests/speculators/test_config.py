"""The section `speculator`: which kinds may be listed together."""

import pytest
from pydantic import ValidationError

from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.kinds import DEFAULT_KIND, KINDS, lookup_names


@pytest.mark.parametrize("lookup", lookup_names())
def test_one_lookup_may_be_listed_with_trained_kinds(
    lookup: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is the only one."""
    listed = [DEFAULT_KIND, lookup]
    assert SpeculatorConfig(kind=listed).candidates == tuple(listed)
    for name in set(lookup_names()) - {lookup}:
        monkeypatch.delitem(KINDS, name)
    assert SpeculatorConfig(kind=listed).candidates == tuple(listed)


@pytest.mark.parametrize(
    "listed",
    [
        [DEFAULT_KIND, *lookup_names()],
        [DEFAULT_KIND, DEFAULT_KIND],
        lookup_names()[:1],
        [],
        [DEFAULT_KIND, "medusa"],
    ],
)
def test_other_lists_are_refused(listed: list[str]) -> None:
    assert len(lookup_names()) > 1
    with pytest.raises(ValidationError, match="list trainable kinds, each once"):
        SpeculatorConfig(kind=listed)
