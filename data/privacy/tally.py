"""Counts of personal data by kind and field, and of what was done about it; never a value.

tally = sum((guard.tally for guard in guards), PrivacyTally())
tally.write(config, out_dir / PRIVACY_FILE)
print(tally.line(config))
"""

import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

from outrider.common.files import write_json
from outrider.data.config import PrivacyConfig

PRIVACY_FILE = "privacy.json"

FIELDS = ("prompt", "completion", "metadata")
"""`completion` is reasoning, content and tool calls; `metadata` is session, user, tenant, route."""


@dataclasses.dataclass
class PrivacyTally:
    """Sums over exchanges, so that the tallies of workers add up."""

    exchanges: int = 0
    characters: int = 0
    """Characters of the examined texts."""
    with_any: int = 0
    """Exchanges with personal data."""
    in_completion: int = 0
    """Exchanges whose response holds personal data or repeats some of the prompt's."""
    replaced: int = 0
    """Exchanges with surrogates."""
    to_regenerate: int = 0
    """Exchanges with surrogates whose response the target must regenerate."""
    ids_dropped: int = 0
    """Exchanges with surrogates whose logged prompt ids were dropped."""
    without_text: int = 0
    """Exchanges of token ids alone, which cannot be examined."""
    left_out: Counter[str] = dataclasses.field(default_factory=Counter)
    """Rejected exchanges by reason."""
    found: Counter[str] = dataclasses.field(default_factory=Counter)
    """Occurrences by `KIND.field`."""

    def __add__(self, other: "PrivacyTally") -> "PrivacyTally":
        return PrivacyTally(
            **{name: value + getattr(other, name) for name, value in vars(self).items()}
        )

    def to_json(self) -> dict[str, Any]:
        """The counts for a part of the ingest."""
        return {
            name: dict(value) if isinstance(value, Counter) else value
            for name, value in vars(self).items()
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "PrivacyTally":
        """Inverse of `to_json`."""
        made = cls()
        for name, held in value.items():
            setattr(made, name, Counter(held) if isinstance(held, dict) else held)
        return made

    def summary(self, config: PrivacyConfig) -> dict[str, Any]:
        """The counts for `privacy.json`."""
        found: dict[str, dict[str, int]] = {}
        for kind in config.entities:
            counts = {field: self.found[f"{kind}.{field}"] for field in FIELDS}
            if any(counts.values()):
                found[kind] = counts
        return {
            "mode": config.mode,
            "min_score": config.min_score,
            "looked_for": list(config.entities),
            **self.to_json(),
            "found": found,
        }

    def write(self, config: PrivacyConfig, path: Path) -> None:
        """Publishes the summary, readable by its owner only: even counts are confidential."""
        write_json(path, self.summary(config), private=True)

    def line(self, config: PrivacyConfig) -> str:
        """One line for the terminal."""
        of_kind: Counter[str] = Counter()
        for name, count in self.found.items():
            of_kind[name.partition(".")[0]] += count
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in of_kind.most_common()) or "none"
        line = f"privacy: {self.with_any:,} of {self.exchanges:,} exchanges hold personal data "
        line += f"({kinds})"
        if config.mode == "surrogate":
            line += f"; replaced in {self.replaced:,}, {self.left_out.total():,} left out"
            if self.to_regenerate:
                line += f"; responses to regenerate: {self.to_regenerate:,}"
        elif self.in_completion:
            line += f"; {self.in_completion:,} hold some in the response and would be left out "
            line += "with surrogates"
        if self.without_text:
            line += f"; {self.without_text:,} of token ids alone were not examined"
        return line
