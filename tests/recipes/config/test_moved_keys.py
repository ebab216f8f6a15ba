"""Keys that have moved: the old ones are gone, the new ones exist."""

import pytest

from outrider.common.config_errors import fields_at
from outrider.recipes.config.moved_keys import MOVED_KEYS, moved_key
from outrider.recipes.config.recipe import Recipe


@pytest.mark.parametrize(("old", "new"), MOVED_KEYS.items())
def test_only_the_new_key_is_in_the_recipe(old: str, new: str) -> None:
    *section, key = new.split(".")
    assert key in fields_at(tuple(section), Recipe)
    *section, key = old.split(".")
    assert key not in fields_at(tuple(section), Recipe)


def test_a_key_moves_with_its_section() -> None:
    assert moved_key(("eval", "parity", "prompts")) == "speculator.parity.prompts"
    assert moved_key(("eval", "parity_check")) is None
