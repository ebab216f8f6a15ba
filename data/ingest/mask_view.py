"""Terminal view of a sequence for checking its mask.

The prompt is dim, the completion green, special tokens are visible. This is the only view that
prints the customer's text.

    Console().print(marked(tokenizer, row["token_ids"], row["completion_start"]))
"""

import itertools
from collections.abc import Iterator, Sequence

from rich.text import Text
from tokenizers import Tokenizer

from outrider.data.ingest.traffic_facts import printable

SHOWN = 120
"""Number of tokens shown at either end of a prompt and of a completion."""

UNTRAINED, TRAINED, NOTE = "dim", "green", "italic yellow"


def marked(tokenizer: Tokenizer, token_ids: Sequence[int], completion_start: int) -> Text:
    """Prompt and completion, each under a heading, so that they differ without colors too."""
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
    """Runs of plain tokens, and special tokens one by one.

    Special tokens are recognized by id: a customer may write `<think>` too.
    """
    for is_special, run in itertools.groupby(ids, special.__contains__):
        if is_special:
            for token in run:
                yield tokenizer.id_to_token(token) or "", True
        else:
            yield tokenizer.decode(list(run), skip_special_tokens=False), False
