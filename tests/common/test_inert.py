"""Nothing of a log, a recipe or a bundle acts in a terminal or on a page."""

import io
import re

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from outrider.common.inert import inert_markdown, printable
from outrider.eval.report.formatting import print_markdown
from tests.fuzzing import examples

HOSTILE = st.lists(
    st.sampled_from(
        [
            *("\x1b]0;pwned\x07", "\x1b[2J", "\x9b31m", "\r", "\x08", "\u202e", "<script>", "</p"),
            *(
                "<!--",
                "<img src=x>",
                "![x](http://y)",
                "`",
                "[/bold]",
                "[red]",
                "=cmd()",
                "|",
                "-A1",
                "\n",
                "a",
            ),
        ]
    ),
    max_size=12,
).map("".join)


def test_control_characters_are_shown():
    assert printable("\x1b[2J\x07é\u202ea\tb\n\x9b") == "␛[2J␇é�a\tb\n�"
    # Unicode's bidirectional algorithm (UAX 9) has twelve marks; two more characters end a line.
    marks = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
    assert printable(marks + "\u2028\u2029") == "\ufffd" * 14


@examples(300)
@given(HOSTILE)
def test_markdown_has_no_tags_images_or_controls(text):
    inert = inert_markdown(text)
    assert not re.search(r"<[A-Za-z/!?]|!\[|[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", inert)
    assert not re.search(r"(^|\|)[ \t]*([=@]|[+-][A-Za-z(@=])", inert, re.MULTILINE)
    assert inert_markdown(inert) == inert


def test_a_spreadsheet_takes_no_cell_for_a_formula():
    table = "| =1+1 | -0.5 |\n|---|---|\n| @SUM(A1) | +cmd |\n- item\n  =HYPERLINK(a)\n-A1"
    escaped = (
        "| \\=1+1 | -0.5 |\n|---|---|\n| \\@SUM(A1) | \\+cmd |\n- item\n  \\=HYPERLINK(a)\n\\-A1"
    )
    assert inert_markdown(table) == escaped


@examples(60)
@given(HOSTILE)
def test_a_terminal_obeys_nothing(text):
    screen = io.StringIO()
    print_markdown(inert_markdown(text), Console(file=screen, force_terminal=False))
    assert printable(screen.getvalue()) == screen.getvalue()
