"""A training conversation of nano R1: prompt, reasoning, answer and part.

Parts are disjoint by content: `part_of` hashes what identifies a text (a question, a candidate's
name), so the same content is in the same part for every seed.

    part_of("How do I change my PIN?")  # 'train'
"""

import gzip
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from outrider.common.errors import OutriderError

Part = Literal["train", "validation", "traffic"]
Work = Literal["math", "receipts", "support", "resumes"]

# Percentages of the content for validation loss and for traffic; the rest is for training.
VALIDATION_PERCENT = 5
TRAFFIC_PERCENT = 15


@dataclass(frozen=True)
class Conversation:
    """One exchange in R1's format.

    After the prompt's `<think>\\n` the model writes `completion` and an end-of-sentence token.
    """

    work: Work
    messages: list[dict[str, str]]
    reasoning: str
    answer: str
    route: str

    @property
    def completion(self) -> str:
        return f"{self.reasoning}\n</think>\n\n{self.answer}"


def part_of(content: str) -> Part:
    """The part that `content` belongs to, ignoring case and surrounding blanks."""
    digest = hashlib.sha256(content.strip().lower().encode()).digest()
    percent = int.from_bytes(digest[:4], "big") % 100
    if percent < VALIDATION_PERCENT:
        return "validation"
    return "traffic" if percent < VALIDATION_PERCENT + TRAFFIC_PERCENT else "train"


def corpus_rows(corpus_dir: Path, name: str) -> Iterator[dict]:
    """Rows of a gzipped JSONL file of the corpus, in order."""
    path = Path(corpus_dir) / name
    if not path.is_file():
        raise OutriderError(
            f"{path}: no such file; the corpus folder holds {name}, see recipes/nano_r1/README.md"
        )
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)
