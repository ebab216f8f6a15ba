"""Counts what is found of labelled texts, and what is found where nothing personal is.

`labelled.jsonl` has 300 invented values in sentences of eight languages, and 51 sentences without
any (kind null), whose numbers resemble personal data. For other texts without personal data, one a
line:

    python -m tests.data.privacy.recall FILE
"""

import json
import sys
from collections import Counter
from pathlib import Path

from outrider.data.config import PrivacyConfig
from outrider.data.privacy.detection import Finder

LABELLED = Path(__file__).with_name("labelled.jsonl")


def labelled_rows():
    return [json.loads(line) for line in LABELLED.read_text(encoding="utf-8").splitlines()]


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
        finder = Finder(with_optional_kinds(kind))
        missed += [row for row in rows if row["kind"] == kind and not is_found(finder, row)]
    return counts, missed


def false_alarms(texts):
    """Returns what is found in texts, and their number of words."""
    finder = Finder(PrivacyConfig(mode="report"))
    alarms = [(one.kind, text[one.start : one.end]) for text in texts for one in finder.find(text)]
    return alarms, sum(len(text.split()) for text in texts)


def main():
    rows = labelled_rows()
    counts, missed = recall_by_kind([row for row in rows if row["kind"]])
    missed_by_kind = Counter(row["kind"] for row in missed)
    for kind, count in counts.items():
        print(f"{kind:20} {count - missed_by_kind[kind]:3} of {count:3} found")
    for row in missed:
        print("missed:", json.dumps(row, ensure_ascii=False))
    texts = [row["text"] for row in rows if not row["kind"]]
    if len(sys.argv) > 1:
        texts = Path(sys.argv[1]).read_text(encoding="utf-8").splitlines()
    alarms, words = false_alarms(texts)
    print(f"{len(alarms)} false alarms in {words:,} words: {alarms[:50]}")


if __name__ == "__main__":
    main()
