"""A sequence as a person checks a mask: the prompt dim, what is trained on green, special tokens visible as the ids have them.

For the terminal of whoever may read the customer's text; nothing else prints any.

    Console().print(marked(tokenizer, row["token_ids"], row["completion_start"]))
"""

import itertools
from collections.abc import Iterator, Sequence

from rich.text import Text
from tokenizers import Tokenizer

from outrider.data.ingest.printable import printable

SHOWN = 120
"""Tokens that are shown at either end of a prompt and of a completion."""

UNTRAINED, TRAINED, NOTE = "dim", "green", "italic yellow"


def marked(tokenizer: Tokenizer, token_ids: Sequence[int], completion_start: int) -> Text:
    """Prompt and completion under a heading each, so that they are told apart without colours too."""
    special = set(tokenizer.get_added_tokens_decoder())
    text = Text()
    for name, ids, style in (
        ("prompt, not trained on", token_ids[:completion_start], UNTRAINED),
        ("completion, trained on", token_ids[completion_start:], TRAINED),
    ):
        text.append(f"{name} ({len(ids)} tokens)\n", NOTE)
        cut = len(ids) - 2 * SHOWN
        if cut > 0:
            _append(text, tokenizer, ids[:SHOWN], special, style)
            text.append(f"\n... {cut} tokens ...\n", NOTE)
            _append(text, tokenizer, ids[-SHOWN:], special, style)
        else:
            _append(text, tokenizer, ids, special, style)
        text.append("\n")
    return text


def _append(
    text: Text, tokenizer: Tokenizer, ids: Sequence[int], special: set[int], style: str
) -> None:
    for piece, is_special in _pieces(tokenizer, ids, special):
        text.append(printable(piece), f"{style} reverse" if is_special else style)


def _pieces(
    tokenizer: Tokenizer, ids: Sequence[int], special: set[int]
) -> Iterator[tuple[str, bool]]:
    """Runs of plain tokens, and special tokens one by one: from the ids, since a customer may write `<think>` too."""
    for is_special, run in itertools.groupby(ids, special.__contains__):
        if is_special:
            yield from ((tokenizer.id_to_token(token), True) for token in run)
        else:
            yield tokenizer.decode(list(run), skip_special_tokens=False), False
