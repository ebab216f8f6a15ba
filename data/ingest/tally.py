"""Counts of an ingest, by chunk and in `summary.json`. Sums only, so that they add up.

tally = sum((Tally.from_json(part) for part in parts), Tally())
"""

import dataclasses
from collections import Counter
from typing import Any

from outrider.data.exchange import BEYOND_FIRST, HALVES, Exchange
from outrider.data.tokenize.tokens import TokenSequence


@dataclasses.dataclass
class Tally:
    """Counts of one chunk, or of all."""

    rows: int = 0
    exchanges: int = 0
    joined: int = 0
    """Rows of records other than their first: an exchange's other half, the chunks of a stream."""
    extra_choices: int = 0
    """Outcomes of records other than their first: further choices of a response."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    without_time: int = 0
    formats: Counter[str] = dataclasses.field(default_factory=Counter)
    """Rows by the format they were read as."""
    rejects: Counter[str] = dataclasses.field(default_factory=Counter)
    fidelity: Counter[str] = dataclasses.field(default_factory=Counter)
    models: Counter[str] = dataclasses.field(default_factory=Counter)
    """Exchanges by model name, as logged."""
    prompt_usage: Counter[str] = dataclasses.field(default_factory=Counter)
    """Whether prompts without ids have as many tokens as the engine counted."""
    retokenized_usage: Counter[str] = dataclasses.field(default_factory=Counter)
    """The same of retokenized completions."""

    def add(self, exchange: Exchange, sequence: TokenSequence) -> None:
        """Counts one exchange that became a sequence."""
        self.exchanges += 1
        self.fidelity[sequence.fidelity] += 1
        self.models[exchange.model or ""] += 1
        if sequence.agrees_with_usage is not None and exchange.completion_token_ids is None:
            self.retokenized_usage["equal" if sequence.agrees_with_usage else "different"] += 1
        if sequence.prompt_agrees_with_usage is not None and exchange.prompt_token_ids is None:
            self.prompt_usage["equal" if sequence.prompt_agrees_with_usage else "different"] += 1
        self.prompt_tokens += sequence.completion_start
        self.completion_tokens += len(sequence.token_ids) - sequence.completion_start
        self.without_time += exchange.time is None

    def __add__(self, other: "Tally") -> "Tally":
        names = [field.name for field in dataclasses.fields(self)]
        return Tally(**{name: getattr(self, name) + getattr(other, name) for name in names})

    def excuse_halves(self) -> None:
        """Counts rejects without their other half as `BEYOND_FIRST`: it may follow."""
        if excused := sum(self.rejects.pop(reason, 0) for reason in HALVES):
            self.rejects[BEYOND_FIRST] += excused

    def lost(self) -> int:
        """Rows that became nothing. Other than 0 is a bug in a reader."""
        return self.rows + self.extra_choices - self.exchanges - self.rejects.total() - self.joined

    def summary(self) -> dict[str, Any]:
        """The counts for `summary.json`."""
        return {
            "rows": self.rows,
            "exchanges": self.exchanges,
            "joined": self.joined,
            "extra_choices": self.extra_choices,
            "rejects": dict(self.rejects.most_common()),
            "formats": dict(self.formats),
            "fidelity": dict(self.fidelity),
            "models": {name or "not logged": count for name, count in self.models.most_common()},
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "prompt_tokens_against_usage": dict(self.prompt_usage),
            "retokenized_against_usage": dict(self.retokenized_usage),
            "without_time": self.without_time,
        }

    def to_json(self) -> dict[str, Any]:
        """The counts for the file of a part."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "Tally":
        """Inverse of `to_json`."""
        made = cls()
        for name, held in value.items():
            setattr(made, name, Counter(held) if isinstance(held, dict) else held)
        return made
