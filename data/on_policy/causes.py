"""Likely causes of off-policy text. Each has a trace in the evidence; some share one.

| cause | trace on nano R1 (temperature 0.6, top_p 0.95; on-policy in the last row) |
|---|---|
| tokens shifted, another vocabulary or language | 95 to 100 % of sure tokens (p > 0.999) differ |
| another model's text, or answers to other prompts | 1.5 to 5 % of those; 4 to 5 % < 1e-4 |
| another temperature than logged | none of those; none outside top_p at the best temperature |
| wrong template, cut or shifted start | 2.6 to 4 nats a token missing in the first 8, < 0.1 after |
| retokenized text | retokenized only; 1 to 4 % of uncertain tokens outside top_p |
| edited | 0.82 of the missing log-probability in tokens < 1e-4; foreign text: half |
| another revision, quantization, unlogged settings | 0.02 to 0.04 nats a token, few outliers |
| on-policy | within 4 standard errors; 0.01 % outside top_p |

Causes with the same trace are named together. Text that the target imitates perfectly, such as the
output of the program that wrote nano R1's training texts, cannot be distinguished and does no harm.

    judge(evidence).text
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from outrider.data.on_policy.evidence import HEAD, REST, Evidence, TemperatureFit

FEWEST_TOKENS = 200
"""Minimum number of completion tokens for a verdict."""

NEGLIGIBLE_NATS = 0.01
"""Difference of the mean log-probability, in nats a token, that affects neither training nor
replay: 1 % in probability."""

STANDARD_ERRORS = 4.0
WIDEST_Z = 1.2
"""Standard deviation of the sequences' z up to which rounding explains it (1.0 in theory; 0.7 to
1.12 on nano R1's traffic)."""

OFF_Z = -5.0
"""A sequence below this z is off-policy; chance gives 1 in 3 million."""

MISSED_FOREIGN, MISSED_SCRAMBLED = 0.005, 0.5
"""Share of the tokens of which the target is sure where the log has another."""

STRAY_SHARE = 0.003
"""See `TemperatureFit.stray_share`."""

LEAST_GAIN, LEAST_CHANGE, FEWEST_FITTED = 8.0, 0.05, 200
"""Minimum gain in log-likelihood, difference from the logged temperature, and number of uncertain
tokens for reporting another temperature."""

HEAD_NATS, HEAD_RATIO = 0.3, 5.0
"""A completion's start is off by itself: nats a token missing, and ratio to the rest."""

FAR_SHARE_EDITED, RARE_EDITED = 0.75, 0.1
"""Edits: this share of the missing log-probability lies in tokens below 1e-4 (0.82 after words were
replaced, 0.46 to 0.63 in foreign text), and at most this share of the tokens does."""

FAR_SHARE_MILD, REST_NATS = 0.4, 0.1
"""The same where no sure token differs: this share, and at most so many nats a token missing in all
others."""


@dataclass(frozen=True)
class Verdict:
    """Whether a group of sequences is on-policy, and otherwise the likely cause."""

    own: bool | None
    """None: too little text."""
    cause: str
    text: str

    def as_dict(self) -> dict[str, Any]:
        return {"own": self.own, "cause": self.cause, "text": self.text}


def judge(evidence: Evidence, among: Evidence | None = None) -> Verdict:
    """Returns the first cause whose trace is present, most obvious first.

    `among` is the traffic that the group belongs to.
    """
    if evidence.total("tokens") < FEWEST_TOKENS:
        return Verdict(
            None,
            "too_little",
            f"fewer than {FEWEST_TOKENS} completion tokens are too few",
        )
    if is_own(evidence):
        return Verdict(True, "own", "as likely as the target's samples")
    off_S = evidence.z() < OFF_Z
    if 0 < off_S.mean() <= 0.5 and is_own(evidence.take(~off_S)):
        verdict = _cause(evidence.take(off_S), among or evidence)
        return Verdict(
            False,
            verdict.cause,
            f"{off_S.sum():,} of {len(evidence):,} sequences are off-policy: {verdict.text}",
        )
    return _cause(evidence, among or evidence)


def is_own(evidence: Evidence) -> bool:
    """Whether all evidence agrees with on-policy text."""
    difference, z_S = abs(evidence.difference()), evidence.z()
    spread = z_S.std(ddof=1) if len(evidence) > 1 else 0.0
    return bool(
        difference <= max(NEGLIGIBLE_NATS, STANDARD_ERRORS * evidence.standard_error())
        and spread <= WIDEST_Z + 3 / np.sqrt(2 * max(len(evidence), 1))
        and evidence.missed() <= MISSED_FOREIGN / 5
    )


def _cause(evidence: Evidence, among: Evidence) -> Verdict:
    """Cause of off-policy text."""
    missed, fit = evidence.missed(REST), evidence.fit_temperature()
    if missed >= MISSED_SCRAMBLED:
        return _verdict(
            "scrambled",
            f"{missed:.0%} of the tokens differ where the target is sure: token ids shifted by one "
            "or of another vocabulary, or text of another kind or language; these have the same "
            "trace",
        )
    missing = evidence.total("sampled_logprob") - evidence.total("expected")
    far_share = evidence.total("rare_difference") / missing if missing < 0 else 0.0
    if missed >= MISSED_FOREIGN:
        if far_share >= FAR_SHARE_EDITED and evidence.share("rare") <= RARE_EDITED:
            return _edited(evidence)
        return _verdict(
            "foreign",
            f"off-policy tokens throughout ({missed:.1%} differ where the target is sure, "
            f"{evidence.share('rare'):.1%} of all below 1e-4): another model wrote the text, or it "
            "answers other prompts than those logged with it (cut, wrongly joined, or without "
            "their reasoning)",
        )
    if (
        fit
        and fit.tokens >= FEWEST_FITTED
        and fit.stray_share <= STRAY_SHARE
        and _differs(fit, evidence.temperature_S)
    ):
        return _temperature(evidence, fit)
    # Medians, so that one or two completions that diverge later do not hide a common bad start.
    head = evidence.difference(HEAD)
    rest = max(evidence.difference(REST), evidence.typical_difference(REST))
    if head <= -HEAD_NATS and head <= HEAD_RATIO * min(rest, 0.0):
        return _verdict(
            "template",
            f"the first tokens of the completions are unlikely ({head:.1f} nats a token), the rest "
            f"are not ({rest:.2f}): the prompts were rendered with another chat template than the "
            "engine's (such as without `<think>`), or the completions were cut or shifted at their "
            "start",
        )
    exact = among.take(~among.retokenized_S)
    exact_is_own = exact.total("tokens") >= FEWEST_TOKENS and is_own(exact)
    if evidence.retokenized_S.all() or (evidence.retokenized_S.any() and exact_is_own):
        alone = (
            ""
            if exact_is_own
            else "; without logged token ids this cannot be distinguished from edited text"
        )
        return _verdict(
            "retokenized",
            "the logged text retokenizes to other tokens than the target generated (log "
            f"`return_token_ids`){alone}",
        )
    rest_nats = missing * (1 - far_share) / evidence.total("tokens")
    if far_share >= FAR_SHARE_MILD and rest_nats >= -REST_NATS:
        return _edited(evidence)
    return _unlogged(evidence, fit)


def _differs(fit: TemperatureFit, temperature_S: np.ndarray) -> bool:
    return fit.gain >= LEAST_GAIN and bool(np.abs(fit.best - temperature_S).mean() >= LEAST_CHANGE)


def _temperature(evidence: Evidence, fit: TemperatureFit) -> Verdict:
    text = f"sampled at a temperature of about {fit.best:g}, logged is "
    text += _logged(evidence.temperature_S)
    if evidence.top_p_S.min() >= 1:
        # With top_p 1 no token is impossible at any temperature, so a blurred target looks like a
        # hotter one.
        text += (
            ", or another revision or quantization of the target wrote it: with a top_p of 1 both "
            "have the same trace"
        )
    return _verdict("temperature", text)


def _edited(evidence: Evidence) -> Verdict:
    return _verdict(
        "edited",
        f"single places are unlikely ({evidence.share('rare'):.2%} of the tokens below 1e-4) and "
        "the rest is on-policy: text that was edited, redacted or assembled after generation",
    )


def _unlogged(evidence: Evidence, fit: TemperatureFit | None) -> Verdict:
    direction = "less likely" if evidence.difference() < 0 else "likelier"
    text = (
        f"{direction} than the target's samples ({evidence.difference():+.3f} nats a token): "
        "another revision or quantization of the target wrote it, or sampling settings are not "
        "logged (top_p, top_k, min_p, penalties); both have the same trace"
    )
    if fit and fit.without_top_p is not None and evidence.top_p_S.max() < 1:
        text += f". Without top_p a temperature of {fit.without_top_p:g} fits best, logged is "
        text += _logged(evidence.temperature_S)
    return _verdict("revision_or_settings", text)


def _verdict(cause: str, text: str) -> Verdict:
    return Verdict(False, cause, text)


def _logged(temperature_S: np.ndarray) -> str:
    low, high = temperature_S.min(), temperature_S.max()
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
