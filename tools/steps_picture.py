"""A response step by step, with and without suffix lookup, as a picture for the documents.

    outrider train resume_screening --stages ingest,split
    python -m tools.steps_picture runs/resume_screening      # writes docs/images/steps.svg

The drafts are those of exact replay: the lookup searches the training part's responses, at the K
that delivers most on the validation part. The response is the held-out one with the median number
of tokens per step, so it is not hand-picked. The picture has text of the log: use shipped traffic.
The background is white, as in the README's chart, so that it can be read on dark pages too.
"""

import argparse
import functools
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

import numpy as np
from tokenizers import Tokenizer

from outrider.data.sequences import load_sequences
from outrider.eval.replay.example_traces import walk
from outrider.eval.replay.lookups import LoggedText, has_step, lookup_sums
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.sources import parts_in_use
from outrider.speculators.kinds import weightless_kind
from outrider.speculators.kinds.protocol import Lookup
from outrider.speculators.lookup_history import EarlierResponse

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "images" / "steps.svg"
COLUMNS = ["sequence_id", "session", "user", "token_ids", "completion_start"]
SHOWN = 110
"""The beginning of the response ends with the step that delivers this token."""

COLUMNS_OF_TEXT = 84
CHARACTER = 8.2
LINE = 24
LEFT = 20
TOP = 64
STYLE = (
    "text{font-family:ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;font-size:13px;"
    "fill:#1c1e21;white-space:pre}.title{font-weight:600;font-size:14px}.own{font-weight:700}"
    ".note{font-size:12px;fill:#5f6670}"
)


class Piece(NamedTuple):
    """Text that one step delivers: from drafts, or the target's own token."""

    text: str
    is_draft: bool
    begins_step: bool


def texts_of(run: RunDirectory, part: str) -> list[LoggedText]:
    """The responses of a part that have a step."""
    ids = parts_in_use(run)[part]
    rows = load_sequences(run.sequences, ids).select_columns(COLUMNS)
    return [text for text in map(LoggedText.of, rows) if has_step(text)]


def drafted(run: RunDirectory) -> tuple[LoggedText, list[tuple[int, int]], int]:
    """The median held-out response, its steps with suffix lookup, and K."""
    kind = weightless_kind("suffix")
    assert kind is not None
    kind.require_installed()
    responses = (
        EarlierResponse(t.token_ids_T[t.completion_start :]) for t in texts_of(run, "train")
    )
    with tempfile.TemporaryDirectory() as scratch:
        directory = kind.prepare(responses, Path(scratch), max_gb=1.0, shared=True)
        lookup = Lookup(kind.name, history=kind.history(directory))
        lengths = lookup_sums(lookup, texts_of(run, "validation")).acceptance_length()
        k = 1 + int(np.argmax(lengths))
        heldout = texts_of(run, "heldout")
        sums = lookup_sums(lookup, heldout)
        length_R = sums.tokens_R / sums.steps_RK[:, k - 1]
        median = np.argsort(length_R, kind="stable")[len(heldout) // 2]
        text = heldout[int(median)]
        drafts_AK = kind.drafts(text.token_ids_T, text.completion_start, [k], lookup)[0]
    response = text.token_ids_T[text.completion_start :].tolist()
    return text, walk(response, lambda anchor: drafts_AK[anchor].tolist()), k


def beginning(steps: Sequence[tuple[int, int]]) -> tuple[list[tuple[int, int]], int]:
    """The first steps, up to the one that delivers token SHOWN, and the tokens with the prefill's.

    A step is (accepted drafts, delivered tokens).
    """
    shown = []
    tokens = 1
    for accepted, delivered in steps:
        if tokens >= SHOWN:
            break
        shown.append((accepted, delivered))
        tokens += delivered
    return shown, tokens


def pieces(
    response: Sequence[int], steps: Sequence[tuple[int, int]], decode: Callable[..., str]
) -> list[Piece]:
    """The text of the prefill's token and of each step."""
    parts = [Piece(decode(response[:1]), is_draft=False, begins_step=True)]
    start = 1
    for accepted, delivered in steps:
        sampled_at = start + accepted
        draft = decode(response[start:sampled_at])
        sampled = decode(response[sampled_at : start + delivered])
        if draft:
            parts.append(Piece(draft, is_draft=True, begins_step=True))
        parts.append(Piece(sampled, is_draft=False, begins_step=not draft))
        start += delivered
    return parts


def lines(parts: Sequence[Piece]) -> list[list[tuple[int, Piece]]]:
    """The pieces by line, each with its column; a piece may continue on the next line."""
    rows: list[list[tuple[int, Piece]]] = [[]]
    column = 0
    for piece in parts:
        rest = piece.text.replace("\n", "↵")
        begins = piece.begins_step
        while rest:
            if column >= COLUMNS_OF_TEXT:
                rows.append([])
                column = 0
            room = COLUMNS_OF_TEXT - column
            shown = rest[:room]
            rest = rest[room:]
            rows[-1].append((column, Piece(shown, piece.is_draft, begins)))
            column += len(shown)
            begins = False
    return rows


def panel(title: str, parts: Sequence[Piece], top: int) -> tuple[list[str], int]:
    """The elements of one way to write the response, and where it ends."""
    elements = [f'<text class="title" x="{LEFT}" y="{top}">{escape(title)}</text>']
    for number, row in enumerate(lines(parts)):
        base = top + LINE * (number + 1)
        for column, piece in row:
            x = LEFT + column * CHARACTER
            width = len(piece.text) * CHARACTER
            if piece.is_draft:
                elements.append(
                    f'<rect x="{x:.1f}" y="{base - 15}" width="{width:.1f}" height="20" rx="3"'
                    ' fill="#cfe3ff"/>'
                )
            if piece.begins_step:
                elements.append(
                    f'<path d="M{x:.1f} {base - 16}v22" stroke="#2f6fde" stroke-width="1.5"/>'
                )
            style = "" if piece.is_draft else ' class="own"'
            elements.append(
                f'<text{style} x="{x:.1f}" y="{base}" textLength="{width:.1f}"'
                f' lengthAdjust="spacingAndGlyphs" xml:space="preserve">{escape(piece.text)}</text>'
            )
    return elements, top + LINE * (len(lines(parts)) + 2)


def svg(
    response: Sequence[int],
    steps: Sequence[tuple[int, int]],
    k: int,
    decode: Callable[..., str],
    source: str,
) -> str:
    """The picture as text of an SVG file."""
    shown, tokens = beginning(steps)
    alone = [(0, 1)] * (tokens - 1)
    panels = [
        (f"No speculation: {len(alone)} steps after the prefill", alone),
        (f"Suffix lookup, K = {k}: {len(shown)} steps for the same text", shown),
    ]
    end = TOP
    elements: list[str] = []
    for title, taken in panels:
        drawn, end = panel(title, pieces(response, taken, decode), end)
        elements += drawn
    width = int(2 * LEFT + COLUMNS_OF_TEXT * CHARACTER)
    note = "A bar begins a step. Blue: accepted drafts; bold: the target's own token of each step."
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {end}" width="{width}"'
            f' height="{end}" role="img">',
            "<title>A response, step by step</title>",
            f"<style>{STYLE}</style>",
            f'<rect width="{width}" height="{end}" rx="8" fill="#ffffff"/>',
            f'<text class="note" x="{LEFT}" y="30">{escape(note)}</text>',
            *elements,
            f'<text class="note" x="{LEFT}" y="{end - LINE // 2}">{escape(source)}</text>',
            "</svg>",
            "",
        ]
    )


def main() -> None:
    """Writes the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    arguments = parser.parse_args()
    run = RunDirectory(arguments.run.resolve())
    recipe = load_recipe(str(run.root)).recipe
    target = recipe.target.training_directory()
    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    decode = functools.partial(tokenizer.decode, skip_special_tokens=False)
    text, steps, k = drafted(run)
    started = json.loads((run.root / "provenance.json").read_text(encoding="utf-8"))["started"]
    source = (
        "The held-out response with the median tokens per step;"
        f" {recipe.target.model} on {recipe.name}, {started[:10]}"
    )
    response = text.token_ids_T[text.completion_start :].tolist()
    PICTURE.write_text(svg(response, steps, k, decode, source), encoding="utf-8")
    tokens = sum(delivered for _, delivered in steps)
    print(f"{text.sequence_id}: {tokens} tokens in {len(steps)} steps at K = {k}")


if __name__ == "__main__":
    main()
