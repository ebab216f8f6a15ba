"""Evidence for on-policy text: sums of the target's scores over each completion.

For a token sampled from the target, log p(x) minus its expectation has mean zero and a known
variance, whatever precedes it (serving/token_scores.py). That answers three questions about any
group of sequences:

- Is the mean log-probability that of sampling at the logged temperature? A z-score, per sequence
  and per group.
- How many tokens would the target hardly sample? One minus their share, beyond the expected share,
  is a sequence's `own_share`, the score for the quarantine. On nano R1 it separates completions of
  other prompts from on-policy ones with an area under the curve of 1.000 (exact ids) and 0.997
  (retokenized text). The mean log-probability comes close (0.993), but in it a single odd token,
  such as in a retokenized word, weighs as much as a foreign sentence.
- Which temperature fits best, by likelihood over a grid?

    evidence = Evidence.of(FeatureStore.open(features), table)
    evidence.own_share(), evidence.z(), evidence.fit_temperature(), evidence.summary()

Shapes: S sequences, P the two parts of a completion (its first tokens, the rest), C columns of
sums.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from datasets import Dataset

    from outrider.data.features.feature_store import FeatureStore

HEAD, REST = 0, 1

ROUNDING_NATS = 0.02
"""Standard deviation between the log-probabilities of two bf16 engines at one token; the
self-check's mean difference on nano R1 is 0.01. Without it the zero variance of deterministic text
would turn rounding into any z."""


@dataclass(frozen=True)
class TemperatureFit:
    """Sampling temperature with the highest likelihood of the logged tokens."""

    best: float
    gain: float
    """Log-likelihood minus that of the logged temperatures, in nats."""
    stray_share: float
    """Share of the fitted tokens outside top_p even at the best temperature. Close to 0 where only
    the temperature differs, 0.5 % or more where anything else does. 0 with top_p 1."""
    tokens: int
    without_top_p: float | None
    """Best temperature with top_p 1, where that fits better."""


class Evidence:
    """Sums of S sequences and their logged sampling settings."""

    def __init__(
        self,
        columns: list[str],
        sums_SPC: np.ndarray,
        temperature_S: np.ndarray,
        top_p_S: np.ndarray,
        retokenized_S: np.ndarray,
    ) -> None:
        self.columns = columns
        self.sums_SPC = np.asarray(sums_SPC, np.float64)
        self.temperature_S, self.top_p_S, self.retokenized_S = temperature_S, top_p_S, retokenized_S

    @classmethod
    def of(cls, store: "FeatureStore", table: "Dataset") -> "Evidence":
        """Reads the sums of every row of the table from the store."""
        return cls(
            store.score_columns,
            np.array([store.scores(sequence_id) for sequence_id in table["sequence_id"]]),
            np.round(np.array(table["temperature"], np.float64), 4),  # the table holds float32
            np.round(np.array(table["top_p"], np.float64), 4),
            np.array([fidelity == "retokenized" for fidelity in table["fidelity"]]),
        )

    @classmethod
    def of_scores(cls, columns: Sequence[str], sums_SPC: Sequence[Any]) -> "Evidence":
        """Sums without the logged sampling settings, which `own_share` does not need."""
        unknown_S = np.full(len(sums_SPC), np.nan)
        return cls(
            list(columns), np.array(sums_SPC), unknown_S, unknown_S, np.zeros(len(sums_SPC), bool)
        )

    def __len__(self) -> int:
        return len(self.sums_SPC)

    def take(self, rows: np.ndarray) -> "Evidence":
        """Selects sequences by indices or by a mask."""
        per_sequence = (self.sums_SPC, self.temperature_S, self.top_p_S, self.retokenized_S)
        return Evidence(self.columns, *(values[rows] for values in per_sequence))

    def of_each(self, column: str, part: int | None = None) -> np.ndarray:
        """[S] sums of a column over each sequence, or over one part of its completion."""
        sums_SP = self.sums_SPC[:, :, self.columns.index(column)]
        return sums_SP.sum(1) if part is None else sums_SP[:, part]

    def total(self, column: str, part: int | None = None) -> float:
        """Sum of a column over all sequences."""
        return float(self.of_each(column, part).sum())

    def share(self, column: str, of: str = "tokens", part: int | None = None) -> float:
        """Sum of a column divided by another's; 0 where that is 0."""
        whole = self.total(of, part)
        return self.total(column, part) / whole if whole else 0.0

    def difference(self, part: int | None = None) -> float:
        """Mean log-probability minus that of on-policy text, in nats a token."""
        return self.share("sampled_logprob", part=part) - self.share("expected", part=part)

    def typical_difference(self, part: int) -> float:
        """Median of the sequences' differences in a part, in nats a token."""
        tokens_S = self.of_each("tokens", part)
        difference_S = self.of_each("sampled_logprob", part) - self.of_each("expected", part)
        return (
            float(np.median(difference_S[tokens_S > 0] / tokens_S[tokens_S > 0]))
            if tokens_S.any()
            else 0.0
        )

    def standard_error(self) -> float:
        """Standard error of `difference` for on-policy text."""
        tokens = self.total("tokens")
        return (
            float(np.sqrt(self.total("variance") + ROUNDING_NATS**2 * tokens) / tokens)
            if tokens
            else 0.0
        )

    def missed(self, part: int | None = None) -> float:
        """Share of sure tokens where the text has another, beyond what sampling explains."""
        expected = self.share("sure_missed_expected", "sure", part)
        return max(self.share("sure_missed", "sure", part) - expected, 0.0)

    def z(self) -> np.ndarray:
        """[S] each sequence's difference in standard errors; standard normal for on-policy text."""
        variance_S = self.of_each("variance") + ROUNDING_NATS**2 * self.of_each("tokens")
        return (self.of_each("sampled_logprob") - self.of_each("expected")) / np.sqrt(
            np.maximum(variance_S, 1e-12)
        )

    def own_share(self) -> np.ndarray:
        """[S] one minus the share of unlikely tokens beyond the expected share; 1 if on-policy.

        Likely tokens are those of top_p, at most 0.95 of the mass (token_scores.LIKELY_MASS).
        """
        excess_S = self.of_each("unlikely") - self.of_each("unlikely_expected")
        return 1 - np.clip(excess_S / np.maximum(self.of_each("tokens"), 1), 0, 1)

    def fit_temperature(self) -> TemperatureFit | None:
        """Fits the temperature; None without a token at which temperatures differ."""
        tokens = self.total("fitted")
        if not tokens:
            return None
        names = [name for name in self.columns if name.startswith("fit_")]
        grid = np.array([float(name.removeprefix("fit_")) for name in names])
        fits = [self.total(f"fit_{temperature:g}") for temperature in grid]
        uncut = [self.total(f"uncut_{temperature:g}") for temperature in grid]
        best, best_uncut = int(np.argmax(fits)), int(np.argmax(uncut))
        without_top_p = (
            float(grid[best_uncut]) if uncut[best_uncut] > fits[best] and grid[best_uncut] else None
        )
        gain, stray = fits[best] - self.total("logged_fit"), self.total(f"stray_{grid[best]:g}")
        return TemperatureFit(
            float(grid[best]), float(gain), stray / tokens, int(tokens), without_top_p
        )

    def summary(self) -> dict[str, Any]:
        """Counts and means, with the range of on-policy text, as plain values."""
        error, expected = self.standard_error(), self.share("expected")
        return {
            "sequences": len(self),
            "tokens": int(self.total("tokens")),
            "sampled_mean_logprob": self.share("sampled_logprob"),
            "expected_range": [expected - 1.96 * error, expected + 1.96 * error],
            "below_1e4": self.share("rare"),
            "z": self.difference() / error if error else 0.0,
            "lowest_own_share": float(self.own_share().min(initial=1.0)),
        }
