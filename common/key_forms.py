"""Forms of API keys and tokens, by the prefixes that their issuers document.

A form needs 16 characters after its prefix, with a digit or a capital, so that names such as
`hf_hub_download` or `sk-loading-indicator` have none. Keys without a prefix need a name before.

    [key_span(match) for match in KEYS.finditer("the key is hf_...")]
"""

import re

_UNBROKEN = (
    # GitHub, npm, Hugging Face, Groq, xAI, Perplexity, Replicate, Fireworks
    *(r"gh[pousr]_", "npm_", "hf_", "api_org_", "gsk_", "xai-", "pplx-", "r8_", "fw_"),
    # Stripe, Shopify, Linear, Notion, Figma, Supabase, Square, Airtable, Brevo, DigitalOcean
    *("[sr]k_(?:live|test)_", "whsec_", "shp(?:at|ss|ca|pa)_", "lin_api_", "ntn_", "secret_"),
    *("fig[dou]r?_", "sbp_", "sb_secret_", "EAAA", "pat(?=[A-Za-z0-9]{14}\\.)", "xkeysib-"),
    *(
        "do[opr]_v1_",
        "dckr_(?:pat|oat)_",
        "dapi",
        "PMAK-",
        "NRAK-",
        "rubygems_",
        "pscale_(?:tkn|pw)_",
    ),
    *("key-(?=[0-9a-f]{32})", "AGE-SECRET-KEY-1", "dp\\.(?:pt|st|ct|sa)\\."),
)
"""Prefixes before at least 16 letters and digits."""

_WITH_SIGNS = (
    # OpenAI, Anthropic, OpenRouter, DeepSeek, NVIDIA, Langfuse, LangSmith, Pinecone
    *("sk-", "nvapi-", "pk-lf-", "lsv2_(?:pt|sk)_", "pcsk_"),
    # GitHub, GitLab, Slack, Google, SendGrid, PyPI, Atlassian, Tailscale, Vault, Grafana, Sentry
    *("github_pat_", "gl(?:pat|dt|rt|cbt|ptt|ft|soat|imt|agent|oas|ffct|rtr)-", "xox[abeprs]-"),
    *("xapp-", "AIza", r"ya29\.", "GOCSPX-", r"SG\.", "pypi-", "AT[AC]TT3", "tskey-", r"hv[sbr]\."),
    *("gl(?:sa|c)_", "sntry[su]_", r"xoxe\.xox[bp]-", "sq0(?:atp|csp)-", "v1\\.0-[0-9a-f]{24}-"),
)
"""Prefixes before at least 16 letters, digits, hyphens, underscores, and dots between them."""

_PREFIXED = (
    rf"(?:{'|'.join(_UNBROKEN)})(?:(?=[A-Za-z]{{0,64}}\d)[A-Za-z0-9]{{16,}}|[A-Za-z]{{24,}})"
    r"(?:[._][A-Za-z0-9]{6,})*"
    rf"|(?:{'|'.join(_WITH_SIGNS)})(?=[a-z_-]{{0,64}}[A-Z0-9])[A-Za-z0-9_-]{{16,}}"
    r"(?:\.[A-Za-z0-9_-]{6,})*={0,2}"
    # AWS: 4 letters for the type and 16 of base 32. Twilio: SK and 32 hexadecimal digits.
    r"|(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}|SK[0-9a-f]{32}"
    # Telegram: the bot's number and 35 characters. Mailchimp: 32 hexadecimal digits, data centre.
    r"|\d{8,10}:AA[A-Za-z0-9_-]{33}|[0-9a-f]{32}-us\d{1,2}"
    # Discord: the application's number in base 64, a time, and a signature.
    r"|[MNO][A-Za-z0-9_-]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,40}"
    # JSON web tokens (RFC 7519): the header's and the claims' first character is {, in base 64 eyJ.
    r"|(?<![_-])eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}"
)
_NAME = (
    r"(?i:(?:(?:api|access|secret|auth|account|shared[_-]?access|private|subscription|client)"
    r"[ _-]?(?:access[_-]?)?(?:key|token|secret)|token|secret"
    r"|(?:clé|clave|chiave|chave(?: de)?)[ _-]api|api[ -]?(?:schlüssel|ключ))|密钥|令牌)"
)
_NAMED = (
    # RFC 6750, section 2.1: b64token.
    r"(?:[Bb]earer|Basic)[ ]+(?=[A-Za-z._~+/-]{0,64}\d)(?P<bearer>[A-Za-z0-9._~+/-]{16,}=*)"
    rf"|{_NAME}[\"']?(?:[ ]?[:=]>?[ ]?|[ ](?:is|ist|est|es|è|é)[ ])[\"']?"
    r"(?=[A-Za-z+/_=-]{0,64}\d)(?=[0-9+/_=-]{0,64}[A-Za-z])"
    # The parts of a JSON web token are joined by dots.
    r"(?P<named>[A-Za-z0-9+/_~-]{16,}(?:\.[A-Za-z0-9_-]{8,}){0,4}={0,2})"
)
_PASSWORDS = (
    # RFC 3986, 3.2.1: user and password before a URL's host.
    r"[a-z][a-z0-9+.-]{1,30}://[^\s:/@\"'<>]{0,64}:(?P<in_url>[^\s/@\"'<>$]{6,128})@(?=[A-Za-z0-9\[])"
    # A variable of an environment, with its value; no call and no reference.
    r"|[A-Z0-9_]{0,40}PASS(?:WORD|WD|PHRASE)?=[\"']?(?=[^\s\"']{0,64}\d)"
    r"(?P<in_variable>[^\s\"'$(){}<>\[\]]{8,128})"
)
_PEM = (
    r"-----BEGIN (?:[A-Z]+ ){0,2}PRIVATE KEY(?: BLOCK)?-----"
    # Headers of RFC 1421, such as `Proc-Type: 4,ENCRYPTED`, have hyphens.
    r"(?:[^-]|-(?!----)){40,20000}"
    r"-----END (?:[A-Z]+ ){0,2}PRIVATE KEY(?: BLOCK)?-----"
)

KEYS = re.compile(rf"(?<![A-Za-z0-9])(?:{_PREFIXED}|{_NAMED}|{_PASSWORDS})|{_PEM}", re.ASCII)

KEY_PREFIX = re.compile(rf"{'|'.join((*_UNBROKEN, *_WITH_SIGNS))}")

POSSIBLE_KEY = re.compile(r"[A-Za-z0-9_+/-]{16}|-----BEGIN|://|PASS", re.ASCII)
"""A part of every key; it is searched for first, because it is found faster."""


GROUPS = ("bearer", "named", "in_url", "in_variable")
"""Groups of `KEYS` that are the key without what names it."""


def key_span(match: re.Match[str]) -> tuple[int, int]:
    """Returns where the key is in a match, which may begin with the key's name."""
    group = next((name for name in GROUPS if match[name]), 0)
    return match.span(group)
