"""Finds rows whose text a logger has masked: the engine read and wrote other tokens.

    check_unmasked(exchange, sequence)      # a `Reject` if a text has a mask and counts disagree

Masks are those of Vector's `redact`, Datadog's scanner, CloudWatch's data protection (asterisks),
Presidio, Google's Sensitive Data Protection and Amazon Bedrock's guardrails by default. A customer
may also write about masks, or mask texts before the engine reads them. So a row is rejected only if
the engine's count of tokens shows that the logged text is not the engine's.
"""

import re

from outrider.data.exchange import Exchange, Reject
from outrider.data.tokenize.tokens import TokenSequence

KINDS = (
    "EMAIL|EMAIL_ADDRESS|PHONE|PHONE_NUMBER|PERSON|PERSON_NAME|NAME|ADDRESS|LOCATION|CREDIT_CARD"
    "|CREDIT_CARD_NUMBER|CREDIT_DEBIT_CARD_NUMBER|IBAN_CODE|IP_ADDRESS|US_SSN|SSN|URL|DATE_TIME"
)

MASK = re.compile(
    r"\[(?:redacted|masked|filtered|removed|sensitive)\b[^\]\n]{0,40}\]"
    r"|(?:(?<=\w )|(?<=[:=] ))\*{6,}(?=[.,:;!?)\"']*(?:\s|\Z))"
    rf"|(?:\[(?:{KINDS})\]|<(?:{KINDS})>|\{{(?:{KINDS})\}})",
    re.IGNORECASE,
)


def check_unmasked(exchange: Exchange, sequence: TokenSequence) -> None:
    """Raises a `Reject` if a text is masked, and has other tokens than the engine counted."""
    agreements = (sequence.prompt_agrees_with_usage, sequence.agrees_with_usage)
    if False not in agreements or exchange.completion_token_ids is not None:
        return
    texts = (sequence.prompt_text, exchange.reasoning, exchange.content)
    if any(MASK.search(text) for text in texts if text):
        raise Reject(
            "redacted",
            "a text has a mask, and not the tokens that the engine counted: log requests and"
            " responses before they are masked, and see privacy.mode for personal data",
        )
