"""Counts what is found of labelled texts, and what is found where nothing personal is.

`labelled.jsonl` has 300 invented values in sentences of eight languages, and 51 sentences without
any (kind null), whose numbers resemble personal data. For other texts without personal data, and
for amounts, dates and numbers of receipts:

    python -m tests.data.privacy.recall FILE...
    python -m tests.data.privacy.recall --receipts FILE...

A file has one text a line, or JSON lines, of which every text is read. It may be in gzip.
"""

import gzip
import json
import re
import sys
from collections import Counter
from pathlib import Path

from outrider.data.config import PrivacyConfig
from outrider.data.privacy.detection import PersonalDataFinder

LABELLED = Path(__file__).with_name("labelled.jsonl")


SECOND = Path(__file__).with_name("labelled_second.jsonl")
THIRD = Path(__file__).with_name("labelled_third.jsonl")
"""Rows of authors who had not read the detector, kept as they were before their first run."""


def labelled_rows(path=LABELLED):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def with_optional_kinds(kind):
    """A recipe's default kinds, and `kind` if it is optional."""
    defaults = PrivacyConfig().entities
    entities = defaults if kind in defaults else [*defaults, kind]
    return PrivacyConfig(mode="report", entities=entities)


def is_found(finder, row):
    """Whether the value is found with its kind and its limits."""
    start = row["text"].index(row["value"])
    end = start + len(row["value"])
    return any(
        (found.kind, found.start, found.end) == (row["kind"], start, end)
        for found in finder.find(row["text"])
    )


def recall_by_kind(rows):
    """Returns the number of values by kind, and the rows whose value is not found."""
    counts = Counter(row["kind"] for row in rows)
    missed = []
    for kind in counts:
        finder = PersonalDataFinder(with_optional_kinds(kind))
        missed += [row for row in rows if row["kind"] == kind and not is_found(finder, row)]
    return counts, missed


def false_alarms(texts):
    """Returns what is found in texts, and their number of words."""
    finder = PersonalDataFinder(PrivacyConfig(mode="report"))
    alarms = [(one.kind, text[one.start : one.end]) for text in texts for one in finder.find(text)]
    return alarms, sum(len(text.split()) for text in texts)


AMOUNT = r"\d+(?:,\d{3})*\.\d{2}(?!\d)"
DATE = r"\d{1,2}[/.-]\d{1,2}[/.-]\d{2,4}(?!\d)|\d{4}-\d{2}-\d{2}(?!\d)|\d{1,2}:\d{2}(?::\d{2})?"
NUMBER = r"\d+(?:[,.-]\d+)*"
FIGURE = re.compile(
    rf"(?<![\d.])(?:(?P<date>{DATE})|(?P<amount>{AMOUNT}))|(?<!\d)(?P<number>{NUMBER})"
)
REACHES = re.compile(
    r"tel|fax|phone|h/?p|mobile|call|line|contact|whats|card|visa|@", re.IGNORECASE
)
"""Words of a line whose number is a shop's telephone or a customer's card: it should be masked."""


def masked_figures(receipts):
    """Returns the figures of receipts by sort, and those that are found as personal data.

    Lines with a telephone or a card, and the line after each, are left out.
    """
    finder = PersonalDataFinder(PrivacyConfig(mode="surrogate"))
    counts = Counter()
    masked = []
    for text in receipts:
        spans = [(one.start, one.end, one.kind) for one in finder.find(text)]
        start = 0
        before = ""
        for line in text.split("\n"):
            if not REACHES.search(f"{before} {line}"):
                for figure in FIGURE.finditer(line):
                    counts[figure.lastgroup] += 1
                    begin = start + figure.start()
                    end = start + figure.end()
                    kinds = [kind for first, last, kind in spans if first < end and begin < last]
                    masked += [(figure.lastgroup, kind, figure[0]) for kind in kinds[:1]]
            start += len(line) + 1
            before = line
    return counts, masked


def texts_of(value):
    """All texts of a JSON value."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [text for one in inner for text in texts_of(one)]


def read_texts(path):
    """The texts of a file: its lines, or those of its objects."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n") for line in file]
    if ".jsonl" in path.suffixes:
        return [text for line in lines for text in texts_of(json.loads(line))]
    return lines


def receipts_of(path):
    """Receipts in JSON lines: the key `ocr_text`, or the last message of a logged request."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    return [
        row["ocr_text"] if "ocr_text" in row else row["request"]["messages"][-1]["content"]
        for row in rows
    ]


def print_receipts(paths):
    """Prints how many figures of receipts are masked."""
    for path in paths:
        receipts = receipts_of(path)
        counts, masked = masked_figures(receipts)
        by_sort = Counter(sort for sort, _, _ in masked)
        figures = ", ".join(
            f"{by_sort[sort]} of {count:,} {sort}s" for sort, count in counts.items()
        )
        print(f"{path.name}: {len(receipts)} receipts, masked: {figures}; {masked[:20]}")


def print_alarms(paths):
    """Prints what is found in texts without personal data."""
    for path in paths:
        alarms, words = false_alarms(read_texts(path))
        rate = 10_000 * len(alarms) / words
        print(f"{path.name}: {len(alarms)} alarms in {words:,} words, {rate:.2f} per 10,000")
        print(f"  {Counter(kind for kind, _ in alarms)} {alarms[:20]}")


def print_recall():
    """Prints the recall of each kind, and the alarms of the sentences without personal data."""
    rows = labelled_rows()
    counts, missed = recall_by_kind([row for row in rows if row["kind"]])
    missed_by_kind = Counter(row["kind"] for row in missed)
    for kind, count in counts.items():
        print(f"{kind:20} {count - missed_by_kind[kind]:3} of {count:3} found")
    for row in missed:
        print("missed:", json.dumps(row, ensure_ascii=False))
    alarms, words = false_alarms([row["text"] for row in rows if not row["kind"]])
    print(f"{len(alarms)} false alarms in {words:,} words: {alarms[:50]}")


def main():
    words = sys.argv[1:]
    if words[:1] == ["--receipts"]:
        print_receipts(map(Path, words[1:]))
    elif words:
        print_alarms(map(Path, words))
    else:
        print_recall()


if __name__ == "__main__":
    main()
