"""What was found of personal data and what was done about it: counts by kind and field, never a value.

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
"""`completion` is reasoning, answer and tool calls; `metadata` session, tenant and route."""


@dataclasses.dataclass
class PrivacyTally:
    """Sums over exchanges, so that the tallies of workers add up."""

    exchanges: int = 0
    characters: int = 0
    """Of the texts that were looked at."""
    with_any: int = 0
    """Exchanges that hold some."""
    in_completion: int = 0
    """Exchanges whose response holds some, or repeats some of the prompt."""
    replaced: int = 0
    """Exchanges in which a surrogate was put."""
    to_regenerate: int = 0
    """Of these, those whose response the target has to give anew."""
    ids_dropped: int = 0
    """Exchanges with a surrogate whose prompt ids were logged and are no longer what the text says."""
    without_text: int = 0
    """Exchanges of token ids that nothing could be looked for in."""
    left_out: Counter[str] = dataclasses.field(default_factory=Counter)
    """Exchanges by the reason of their reject."""
    found: Counter[str] = dataclasses.field(default_factory=Counter)
    """Occurrences by `KIND.field`."""

    def __add__(self, other: "PrivacyTally") -> "PrivacyTally":
        return PrivacyTally(
            **{name: value + getattr(other, name) for name, value in vars(self).items()}
        )

    def to_json(self) -> dict[str, Any]:
        """As a part of the ingest may keep it."""
        return {
            name: dict(value) if isinstance(value, Counter) else value
            for name, value in vars(self).items()
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> "PrivacyTally":
        """What `to_json` gave."""
        return cls(
            **{
                name: Counter(held) if isinstance(held, dict) else held
                for name, held in value.items()
            }
        )

    def summary(self, config: PrivacyConfig) -> dict[str, Any]:
        """As `privacy.json` has it."""
        by_kind = {
            kind: {field: self.found[f"{kind}.{field}"] for field in FIELDS}
            for kind in config.entities
        }
        return {
            "mode": config.mode,
            "min_score": config.min_score,
            "looked_for": list(config.entities),
            **self.to_json(),
            "found": {kind: counts for kind, counts in by_kind.items() if any(counts.values())},
        }

    def write(self, config: PrivacyConfig, path: Path) -> None:
        """Publishes the summary, for the owner's eyes only: that there is something is already telling."""
        write_json(path, self.summary(config), private=True)

    def line(self, config: PrivacyConfig) -> str:
        """One line for the terminal."""
        of_kind: Counter[str] = Counter()
        for name, count in self.found.items():
            of_kind[name.partition(".")[0]] += count
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in of_kind.most_common()) or "none"
        line = f"privacy: {self.with_any:,} of {self.exchanges:,} exchanges hold personal data ({kinds})"
        if config.mode == "surrogate":
            line += f"; replaced in {self.replaced:,}, {self.left_out.total():,} left out"
            if self.to_regenerate:
                line += f"; the target will answer {self.to_regenerate:,} anew"
        elif self.in_completion:
            line += f"; {self.in_completion:,} hold some in the response, surrogates would leave these out"
        if self.without_text:
            line += f"; {self.without_text:,} of token ids alone were not looked at"
        return line
