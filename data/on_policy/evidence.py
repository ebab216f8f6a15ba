"""Evidence for on-policy text: sums of the target's scores over each completion.

For a token sampled from the target, log p(x) minus its expectation has mean zero and a known
variance, whatever precedes it (serving/token_scores.py). This answers three questions about any
group of sequences:

- Does the mean log-probability match sampling at the logged temperature? The answer is a z-score,
  per sequence and per group.
- How many tokens are unlikely under the target? The `own_share` of a sequence, its score for the
  quarantine, is one minus the excess of their share over the expected one. On nano R1 it separates
  completions of other prompts from on-policy ones with an area under the ROC curve of 1.000 (exact
  ids) and 0.997 (retokenized text). The mean log-probability reaches 0.993, but lets a single odd
  token, for example in a retokenized word, weigh as much as a foreign sentence.
- Which temperature fits best, by likelihood over a grid?

`judge_evidence` names the likely cause of off-policy text. Each cause leaves a trace; some share a
trace:

| cause | trace on nano R1 (temperature 0.6, top_p 0.95; on-policy in the last row) |
|---|---|
| shifted tokens, another vocabulary or language | 95 to 100 % of sure tokens (p > 0.999) differ |
| foreign text (other model or prompt) | 1.5 to 5 % of sure tokens differ; 4 to 5 % have p < 1e-4 |
| a temperature other than logged | neither of the above; no token outside top_p at the best fit |
| wrong template, cut or shifted start | first 8 tokens lack 2.6 to 4 nats each, later ones < 0.1 |
| retokenized text | in retokenized text only; 1 to 4 % of uncertain tokens outside top_p |
| edited | 0.82 of the missing log-probability is in tokens with p < 1e-4; foreign text: half |
| another revision, quantization, unlogged settings | tokens lack 0.02 to 0.04 nats; few outliers |
| on-policy | within 4 standard errors; 0.01 % outside top_p |

Causes with the same trace are named together. Text that the target imitates perfectly, such as the
output of the program that wrote nano R1's training texts, cannot be distinguished and is harmless.

    evidence = Evidence.of(FeatureStore.open(features), table)
    evidence.own_share(), evidence.z(), evidence.fit_temperature(), evidence.summary()
    judge_evidence(evidence).text

Shapes: S sequences, P parts of a completion (first tokens, the rest), C columns of sums.
"""

from dataclasses import dataclass
from typing import TypedDict

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray

from outrider.data.features.feature_store import FeatureStore

HEAD, REST = 0, 1

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Rows = NDArray[np.intp]

ROUNDING_NATS = 0.02
"""Standard deviation of the difference between two bf16 engines' log-probabilities of a token; the
self-check's mean difference on nano R1 is 0.01. Without this term, rounding could make z
arbitrarily large for deterministic text, whose variance is zero."""

NEGLIGIBLE_NATS = 0.01
"""Difference in mean log-probability, in nats per token, that affects neither training nor replay:
1 % in probability."""

STANDARD_ERRORS = 4.0
WIDEST_Z = 1.2
"""Maximum standard deviation of z across on-policy sequences, allowing for rounding. The expected
value is 1.0; nano R1's traffic has 0.7 to 1.12."""

OFF_Z = -5.0
"""A sequence with a z below this counts as off-policy; by chance, 1 in 3 million on-policy
sequences does too."""

STRAY_SHARE = 0.003
"""Maximum `TemperatureFit.stray_share` if only the temperature differs."""

LEAST_GAIN, LEAST_CHANGE, FEWEST_FITTED = 8.0, 0.05, 200
"""Minimum gain in log-likelihood, difference from the logged temperature, and number of uncertain
tokens required to report another temperature."""

FEWEST_TOKENS = 200
"""Minimum number of completion tokens for a verdict."""

MISSED_FOREIGN, MISSED_SCRAMBLED = 0.005, 0.5
"""Minimum excess share of mismatches where the target is sure (`OnPolicyEvidence.missed_share`) for
text to be considered foreign or scrambled."""


@dataclass(frozen=True)
class TemperatureFit:
    """Sampling temperature with the highest likelihood of the logged tokens."""

    best: float
    gain: float
    """Log-likelihood minus that at the logged temperatures, in nats."""
    stray_share: float
    """Share of the fitted tokens outside top_p even at the best temperature. Close to 0 if only
    the temperature differs, 0.5 % or more if anything else does. Always 0 with top_p 1."""
    tokens: int


class EvidenceSummary(TypedDict):
    """A group's counts and means, as written."""

    sequences: int
    tokens: int
    sampled_mean_logprob: float
    expected_range: list[float]
    """95 % interval of the mean for on-policy text: its low and high ends."""
    below_1e4: float
    """Share of tokens below probability 1e-4."""
    z: float
    lowest_own_share: float


class OnPolicyEvidence:
    """Summed scores of S sequences, with their logged sampling settings."""

    def __init__(
        self,
        columns: list[str],
        sums_SPC: Array,
        temperature_S: Array,
        top_p_S: Array,
        retokenized_S: Mask,
    ) -> None:
        self.columns = columns
        self.sums_SPC = np.asarray(sums_SPC, np.float64)
        self.temperature_S, self.top_p_S, self.retokenized_S = temperature_S, top_p_S, retokenized_S

    @classmethod
    def of(cls, store: FeatureStore, table: Dataset) -> "OnPolicyEvidence":
        """Reads the sums of every row of the table from the store."""
        sums_SPC = np.array([store.scores(sequence_id) for sequence_id in table["sequence_id"]])
        temperature_S = np.array(table["temperature"], np.float64)  # the table holds float32
        top_p_S = np.array(table["top_p"], np.float64)
        retokenized_S = np.array([fidelity == "retokenized" for fidelity in table["fidelity"]])
        return cls(
            columns=store.score_columns,
            sums_SPC=sums_SPC,
            temperature_S=np.round(temperature_S, 4),
            top_p_S=np.round(top_p_S, 4),
            retokenized_S=retokenized_S,
        )

    def __len__(self) -> int:
        return len(self.sums_SPC)

    def take(self, rows: Rows | Mask) -> "OnPolicyEvidence":
        """Selects sequences by indices or by a mask."""
        return OnPolicyEvidence(
            columns=self.columns,
            sums_SPC=self.sums_SPC[rows],
            temperature_S=self.temperature_S[rows],
            top_p_S=self.top_p_S[rows],
            retokenized_S=self.retokenized_S[rows],
        )

    def by_sequence(self, column: str, part: int | None = None) -> Array:
        """[S] sums of a column over each sequence, or over one part of its completion."""
        sums_SP = self.sums_SPC[:, :, self.columns.index(column)]
        return sums_SP.sum(1) if part is None else sums_SP[:, part]

    def total(self, column: str, part: int | None = None) -> float:
        """Sum of a column over all sequences."""
        return float(self.by_sequence(column, part).sum())

    def share(self, column: str, of: str = "tokens", part: int | None = None) -> float:
        """Ratio of two columns' sums; 0 if the divisor is 0."""
        whole = self.total(of, part)
        return self.total(column, part) / whole if whole else 0.0

    def difference(self, part: int | None = None) -> float:
        """Mean log-probability minus that expected of on-policy text, in nats per token."""
        return self.share("sampled_logprob", part=part) - self.share("expected", part=part)

    def typical_difference(self, part: int) -> float:
        """Median of the sequences' differences in a part, in nats per token."""
        tokens_S = self.by_sequence("tokens", part)
        difference_S = self.by_sequence("sampled_logprob", part) - self.by_sequence(
            "expected", part
        )
        if not tokens_S.any():
            return 0.0
        return float(np.median(difference_S[tokens_S > 0] / tokens_S[tokens_S > 0]))

    def standard_error(self) -> float:
        """Standard error of `difference` for on-policy text."""
        tokens = self.total("tokens")
        if not tokens:
            return 0.0
        return float(np.sqrt(self.total("variance") + ROUNDING_NATS**2 * tokens) / tokens)

    def missed_share(self, part: int | None = None) -> float:
        """Excess share of mismatches at positions where the target is sure."""
        expected = self.share("sure_missed_expected", "sure", part)
        return max(self.share("sure_missed", "sure", part) - expected, 0.0)

    def z(self) -> Array:
        """[S] each sequence's difference in standard errors; standard normal for on-policy text."""
        variance_S = self.by_sequence("variance") + ROUNDING_NATS**2 * self.by_sequence("tokens")
        return (self.by_sequence("sampled_logprob") - self.by_sequence("expected")) / np.sqrt(
            np.maximum(variance_S, 1e-12)
        )

    def own_share(self) -> Array:
        """[S] one minus the excess share of unlikely tokens; 1 if on-policy.

        Likely tokens are those within top_p, or within 0.95 of the mass if top_p is larger
        (token_scores.LIKELY_MASS).
        """
        excess_S = self.by_sequence("unlikely") - self.by_sequence("unlikely_expected")
        return 1 - np.clip(excess_S / np.maximum(self.by_sequence("tokens"), 1), 0, 1)

    def fit_temperature(self) -> TemperatureFit | None:
        """Fits the temperature; returns None if no token distinguishes temperatures."""
        tokens = self.total("fitted")
        if not tokens:
            return None
        names = [name for name in self.columns if name.startswith("fit_")]
        grid = np.array([float(name.removeprefix("fit_")) for name in names])
        fits = [self.total(f"fit_{temperature:g}") for temperature in grid]
        best = int(np.argmax(fits))
        gain = fits[best] - self.total("logged_fit")
        stray = self.total(f"stray_{grid[best]:g}")
        return TemperatureFit(float(grid[best]), float(gain), stray / tokens, int(tokens))

    def summary(self) -> EvidenceSummary:
        """Counts, means and the range expected of on-policy text, as plain values."""
        error = self.standard_error()
        expected = self.share("expected")
        return {
            "sequences": len(self),
            "tokens": int(self.total("tokens")),
            "sampled_mean_logprob": self.share("sampled_logprob"),
            "expected_range": [expected - 1.96 * error, expected + 1.96 * error],
            "below_1e4": self.share("rare"),
            "z": self.difference() / error if error else 0.0,
            "lowest_own_share": float(self.own_share().min(initial=1.0)),
        }


@dataclass(frozen=True)
class OnPolicyVerdict:
    """Whether a group of sequences is on-policy, and the likely cause if not."""

    own: bool | None
    """None if there is too little text, or nothing that can be checked."""
    cause: str
    text: str


def checked_rows(evidence: OnPolicyEvidence, table: Dataset) -> Mask:
    """[S] whether each sequence can be checked.

    Penalties and the like change the distribution that the tokens were sampled from, so scores
    under temperature, top_k and top_p mean nothing. A logged grammar's mask is part of the scores;
    where it was unusable, capture scored no token.
    """
    free_S = np.array([not constraint for constraint in table["constraint"]], bool)
    masked_S = np.array([bool(grammar) for grammar in table["grammar"]], bool)
    return free_S | (masked_S & (evidence.by_sequence("tokens") > 0))


def judge_checked(checked: OnPolicyEvidence, not_checked: int) -> OnPolicyVerdict:
    """`judge_evidence` of a group's checked sequences, of which there may be none."""
    if not_checked and not len(checked):
        text = f"{not_checked:,} sequences were sampled otherwise and cannot be checked"
        return OnPolicyVerdict(None, "not_checked", text)
    return judge_evidence(checked)


def judge_evidence(evidence: OnPolicyEvidence) -> OnPolicyVerdict:
    """Returns the verdict on a group; the most obvious causes are tested first."""
    if evidence.total("tokens") < FEWEST_TOKENS:
        text = f"a verdict needs at least {FEWEST_TOKENS} completion tokens"
        return OnPolicyVerdict(None, "too_little", text)
    if is_on_policy(evidence):
        return OnPolicyVerdict(True, "own", "as likely as the target's samples")
    off_S = evidence.z() < OFF_Z
    if 0 < off_S.mean() <= 0.5 and is_on_policy(evidence.take(~off_S)):
        cause, text = _cause(evidence.take(off_S))
        text = f"{off_S.sum():,} of {len(evidence):,} sequences are off-policy: {text}"
    else:
        cause, text = _cause(evidence)
    return OnPolicyVerdict(False, cause, text)


def is_on_policy(evidence: OnPolicyEvidence) -> bool:
    """Whether all evidence is consistent with on-policy text."""
    difference = abs(evidence.difference())
    z_S = evidence.z()
    spread = z_S.std(ddof=1) if len(evidence) > 1 else 0.0
    largest_difference = max(NEGLIGIBLE_NATS, STANDARD_ERRORS * evidence.standard_error())
    # A standard deviation of n samples has a standard error of about 1 / sqrt(2 n).
    widest = WIDEST_Z + 3 / np.sqrt(2 * max(len(evidence), 1))
    is_centred = difference <= largest_difference and spread <= widest
    return bool(is_centred and evidence.missed_share() <= MISSED_FOREIGN / 5)


def _cause(evidence: OnPolicyEvidence) -> tuple[str, str]:
    """Returns the name and description of the cause of off-policy text."""
    missed = evidence.missed_share(REST)
    fit = evidence.fit_temperature()
    rare = evidence.share("rare")
    if missed >= MISSED_SCRAMBLED:
        return "scrambled", (
            f"{missed:.0%} of the tokens differ where the target is sure: token ids shifted by one "
            "or of another vocabulary, or text of another kind or language"
        )
    missing = evidence.total("sampled_logprob") - evidence.total("expected")
    far_share = evidence.total("rare_difference") / missing if missing < 0 else 0.0
    edited = (
        "edited",
        (
            f"isolated tokens are unlikely ({rare:.2%} are below 1e-4) and the rest is on-policy: "
            "text that was edited, redacted or assembled after generation"
        ),
    )
    if missed >= MISSED_FOREIGN:
        # Tokens below 1e-4 account for 0.82 of the missing log-probability if words were replaced,
        # and for 0.46 to 0.63 in foreign text.
        if far_share >= 0.75 and rare <= 0.1:
            return edited
        return "foreign", (
            f"off-policy tokens throughout ({missed:.1%} differ where the target is sure, "
            f"{rare:.1%} of all below 1e-4): another model wrote the text, or it answers other "
            "prompts than those logged with it (cut, wrongly joined, or without their reasoning)"
        )
    if (
        fit
        and fit.tokens >= FEWEST_FITTED
        and fit.stray_share <= STRAY_SHARE
        and fit.gain >= LEAST_GAIN
        and np.abs(fit.best - evidence.temperature_S).mean() >= LEAST_CHANGE
    ):
        # With top_p 1 every token is possible at any temperature, so another revision or
        # quantization looks like a higher temperature.
        return "temperature", (
            f"sampled at a temperature of about {fit.best:g}, but "
            f"{np.median(evidence.temperature_S):g} was logged (with a top_p of 1, another "
            "revision or quantization has the same trace)"
        )
    # Only the start is off: it lacks at least 0.3 nats per token, and at least five times as much
    # as the rest.
    # `rest` may be the median, so that a few late divergences do not hide a bad start.
    head = evidence.difference(HEAD)
    rest = max(evidence.difference(REST), evidence.typical_difference(REST))
    if head <= -0.3 and head <= 5.0 * min(rest, 0.0):
        return "template", (
            f"the first tokens of the completions are unlikely ({head:.1f} nats per token), the "
            f"rest are not ({rest:.2f}): the prompts were rendered with another chat template than "
            "the engine's (such as without `<think>`), or the completions were cut or shifted at "
            "their start"
        )
    if evidence.retokenized_S.mean() > 0.5:
        return "retokenized", (
            "the logged text retokenizes to other tokens than the target generated, or it was "
            "edited: log token ids (`return_token_ids`)"
        )
    # Edits that left every sure token unchanged: rare tokens account for at least 0.4 of the
    # missing log-probability, and the rest of it is at most 0.1 nats per token.
    if far_share >= 0.4 and missing * (1 - far_share) >= -0.1 * evidence.total("tokens"):
        return edited
    return "revision_or_settings", (
        "the mean log-probability differs from the target's samples "
        f"({evidence.difference():+.3f} nats per token): another revision or quantization of the "
        "target wrote the text, or sampling settings were not logged (top_p, top_k, min_p, "
        "penalties)"
    )
