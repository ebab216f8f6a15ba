"""The reference pages are generated, and current."""

from collections.abc import Iterator

import pytest

from outrider.pipeline.recipe.recipe import Recipe
from tools.reference import DOCS, PAGES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_docstrings_say(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "run: make reference"


def keys(schema: dict, section: dict, prefix: str = "") -> Iterator[str]:
    """Every key of a JSON schema, sections that may be null and named sections included."""
    for name, field in section["properties"].items():
        yield f"{prefix}{name}"
        for form in (field, *field.get("anyOf", ())):
            named = form.get("additionalProperties")
            inner = named if isinstance(named, dict) else form
            if "$ref" in inner:
                child = schema["$defs"][inner["$ref"].rpartition("/")[2]]
                part = f"{prefix}{name}.NAME." if named else f"{prefix}{name}."
                if "properties" in child:
                    yield from keys(schema, child, part)


def test_every_key_of_a_recipe_is_listed() -> None:
    page = (DOCS / "recipes.md").read_text(encoding="utf-8")
    schema = Recipe.model_json_schema()
    found = list(keys(schema, schema))
    assert "eval.cost.gpu_hour_price" in found
    missing = [key for key in found if f"`{key}`" not in page]
    assert not missing
