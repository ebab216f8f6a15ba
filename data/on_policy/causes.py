"""If the logged text is not the target's own, why? Each cause leaves another trace in the evidence, and some leave the same.

| cause | trace on nano R1 (temperature 0.6, top_p 0.95; its own traffic in the last row) |
|---|---|
| tokens shifted, another vocabulary or language | where the target is sure of a token (0.999), 95 to 100 % are another |
| another model's text, or answers to other prompts | 1.5 to 5 % of those; 4 to 5 % of the tokens below 1e-4 |
| another temperature than logged | none of those, and none outside top_p at the temperature that fits best |
| wrong template, cut or shifted start | 2.6 to 4 nats a token missing in the first 8, under 0.1 in the rest |
| text tokenized again | only in retokenized sequences; 1 to 4 % of the uncertain tokens outside top_p at any temperature |
| edited | most of the missing log-probability (0.82) lies in tokens below 1e-4, in foreign text half of it |
| another revision, quantization, unlogged settings | 0.02 to 0.04 nats a token, few tokens far out |
| its own | within 4 standard errors; 0.01 % outside top_p |

Where two causes leave the same trace both are named. What the target imitates perfectly, as the program that wrote nano R1's
training texts, cannot be told from it at all, and need not be.

    judge(evidence).text
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from outrider.data.on_policy.evidence import HEAD, REST, Evidence, TemperatureFit

FEWEST_TOKENS = 200
"""Below so many completion tokens nothing is said."""

NEGLIGIBLE_NATS = 0.01
"""A difference of the mean log-probability, in nats a token, that changes neither training nor replay: 1 % in probability."""

STANDARD_ERRORS = 4.0
WIDEST_Z = 1.2
"""Standard deviation of the sequences' z up to which rounding explains them (1.0 exactly; 0.7 to 1.12 on nano R1's traffic)."""

OFF_Z = -5.0
"""A sequence below this was not drawn from the target as logged: once in 3 million."""

MISSED_FOREIGN, MISSED_SCRAMBLED = 0.005, 0.5
"""Share of the tokens of which the target is sure where the log has another."""

STRAY_SHARE = 0.003
"""See `TemperatureFit.stray_share`."""

LEAST_GAIN, LEAST_CHANGE, FEWEST_FITTED = 8.0, 0.05, 200
"""Log-likelihood, difference from the logged temperature, and uncertain tokens, from which another one is said to fit."""

HEAD_NATS, HEAD_RATIO = 0.3, 5.0
"""A completion's first tokens are off by themselves: so many nats a token missing, and so many times the rest's."""

FAR_SHARE_EDITED, RARE_EDITED = 0.75, 0.1
"""Single places are at fault where this share of the missing log-probability lies in tokens below 1e-4 (0.82 after words were
replaced, 0.46 to 0.63 in foreign text), and no more of the tokens are such."""

FAR_SHARE_MILD, REST_NATS = 0.4, 0.1
"""The same where the target was never contradicted: this share, and no more nats a token missing in all the others."""


@dataclass(frozen=True)
class Verdict:
    """Whether a group of sequences is the target's own text, and if not the likely cause in words."""

    own: bool | None
    """None: too little text to tell."""
    cause: str
    text: str

    def as_dict(self) -> dict[str, Any]:
        return {"own": self.own, "cause": self.cause, "text": self.text}


def judge(evidence: Evidence, among: Evidence | None = None) -> Verdict:
    """The first cause whose trace is there, from the plainest on. `among` is the traffic of which the group is a part."""
    if evidence.total("tokens") < FEWEST_TOKENS:
        return Verdict(
            None,
            "too_little",
            f"fewer than {FEWEST_TOKENS} completion tokens say nothing either way",
        )
    if is_own(evidence):
        return Verdict(True, "own", "as likely as the target's own samples")
    off_S = evidence.z() < OFF_Z
    if 0 < off_S.mean() <= 0.5 and is_own(evidence.take(~off_S)):
        verdict = _cause(evidence.take(off_S), among or evidence)
        return Verdict(
            False,
            verdict.cause,
            f"{off_S.sum():,} of {len(evidence):,} sequences are off: {verdict.text}",
        )
    return _cause(evidence, among or evidence)


def is_own(evidence: Evidence) -> bool:
    """Whether nothing here speaks against it."""
    difference, z_S = abs(evidence.difference()), evidence.z()
    spread = z_S.std(ddof=1) if len(evidence) > 1 else 0.0
    return bool(
        difference <= max(NEGLIGIBLE_NATS, STANDARD_ERRORS * evidence.standard_error())
        and spread <= WIDEST_Z + 3 / np.sqrt(2 * max(len(evidence), 1))
        and evidence.missed() <= MISSED_FOREIGN / 5
    )


def _cause(evidence: Evidence, among: Evidence) -> Verdict:
    """Of text that is off."""
    missed, fit = evidence.missed(REST), evidence.fit_temperature()
    if missed >= MISSED_SCRAMBLED:
        return _verdict(
            "scrambled",
            f"hardly a token is what the target would write ({missed:.0%} differ where it is sure): token ids shifted by one or of "
            "another vocabulary, or text of quite another kind or language; the two look alike from here",
        )
    missing = evidence.total("sampled_logprob") - evidence.total("expected")
    far_share = evidence.total("rare_difference") / missing if missing < 0 else 0.0
    if missed >= MISSED_FOREIGN:
        if far_share >= FAR_SHARE_EDITED and evidence.share("rare") <= RARE_EDITED:
            return _edited(evidence)
        return _verdict(
            "foreign",
            f"tokens that the target would not write stand all over ({missed:.1%} differ where it is sure, "
            f"{evidence.share('rare'):.1%} of all below 1e-4): another model wrote the text, or it answers other prompts than "
            "those logged with it (cut, joined wrongly, or without the reasoning that led to it)",
        )
    if (
        fit
        and fit.tokens >= FEWEST_FITTED
        and fit.stray_share <= STRAY_SHARE
        and _differs(fit, evidence.temperature_S)
    ):
        return _temperature(evidence, fit)
    # A long completion or two that go astray later must not hide what all begin with.
    head, rest = (
        evidence.difference(HEAD),
        max(evidence.difference(REST), evidence.typical_difference(REST)),
    )
    if head <= -HEAD_NATS and head <= HEAD_RATIO * min(rest, 0.0):
        return _verdict(
            "template",
            f"the first tokens of the completions are unlikely ({head:.1f} nats a token), the rest is hardly ({rest:.2f}): the prompts "
            "were rendered with another chat template than the engine's (such as without `<think>`), or the completions were "
            "cut or shifted at their start",
        )
    exact = among.take(~among.retokenized_S)
    exact_is_own = exact.total("tokens") >= FEWEST_TOKENS and is_own(exact)
    if evidence.retokenized_S.all() or (evidence.retokenized_S.any() and exact_is_own):
        alone = (
            ""
            if exact_is_own
            else "; without sequences of logged ids it cannot be told from edited text"
        )
        return _verdict(
            "retokenized",
            "tokenizing the logged text again gives other tokens than those that the target wrote (log "
            f"`return_token_ids`){alone}",
        )
    rest_nats = missing * (1 - far_share) / evidence.total("tokens")
    if far_share >= FAR_SHARE_MILD and rest_nats >= -REST_NATS:
        return _edited(evidence)
    return _unlogged(evidence, fit)


def _differs(fit: TemperatureFit, temperature_S: np.ndarray) -> bool:
    return fit.gain >= LEAST_GAIN and bool(np.abs(fit.best - temperature_S).mean() >= LEAST_CHANGE)


def _temperature(evidence: Evidence, fit: TemperatureFit) -> Verdict:
    text = f"it was sampled at a temperature of about {fit.best:g}, logged is {_logged(evidence.temperature_S)}"
    if evidence.top_p_S.min() >= 1:
        # Without a cut nothing is ruled out at any temperature, so that a blurred target looks like a hotter one.
        text += ", or another revision or quantization of the target wrote it: with a top_p of 1 the two look alike"
    return _verdict("temperature", text)


def _edited(evidence: Evidence) -> Verdict:
    return _verdict(
        "edited",
        f"single places are far out ({evidence.share('rare'):.2%} of the tokens below 1e-4) and the rest is the target's: text that "
        "was edited, redacted or put together after it was written",
    )


def _unlogged(evidence: Evidence, fit: TemperatureFit | None) -> Verdict:
    direction = "less likely" if evidence.difference() < 0 else "likelier"
    text = (
        f"it is {direction} than the target's own samples ({evidence.difference():+.3f} nats a token): another revision or "
        "quantization of the target wrote it, or sampling settings that the log does not name (top_p, top_k, min_p, "
        "penalties); the two look alike from here"
    )
    if fit and fit.without_top_p is not None and evidence.top_p_S.max() < 1:
        text += f". Without top_p a temperature of {fit.without_top_p:g} fits best, logged is {_logged(evidence.temperature_S)}"
    return _verdict("revision_or_settings", text)


def _verdict(cause: str, text: str) -> Verdict:
    return Verdict(False, cause, text)


def _logged(temperature_S: np.ndarray) -> str:
    low, high = temperature_S.min(), temperature_S.max()
    return f"{low:g}" if low == high else f"{low:g} to {high:g}"
