"""The reference page is generated, and current."""

from outrider.recipes.config.reference import PAGE, reference


def test_the_page_is_what_the_docstrings_say():
    assert PAGE.read_text(encoding="utf-8") == reference(), "run: make reference"
