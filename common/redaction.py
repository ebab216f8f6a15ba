"""Recognizes secrets by their names and forms, and replaces them with `***`.

    looks_secret("HF_TOKEN")                       # True; max_num_batched_tokens: False
    redact("vllm serve x --api-key sk-1 -tp 8")  # vllm serve x --api-key *** -tp 8
    redact_command(sys.argv)

This is a heuristic: it misses a password with an innocuous name. Keep secrets in the environment
of the command or in a file that only its owner can read.
"""

import re
from collections.abc import Sequence

from outrider.common.key_forms import KEYS, key_span

HIDDEN = "***"

SERVE_COMMAND = "--from-serve-command"
"""The option of `outrider train` and `eval` whose value is a whole command."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_ALWAYS = {
    *("secret", "secrets", "password", "passwords", "passwd", "passphrase", "apikey"),
    *("credential", "credentials", "authorization", "bearer", "pgpassword", "pgpass"),
}
_LAST = {"token", "key", "keys", "sig", "signature", "pwd"}
"""Words that mark a secret only at the end of its name: `token_ids`, `draft_tokens` and
`key_value_heads` are not secrets."""
_KEY_ID = re.compile(
    r"(access|secret|api|private|signing|session).?(key|token)|connection.?string", re.IGNORECASE
)
_PLAIN = {"key", "keys", "pwd", "stop token", "bos token", "eos token", "pad token"}
_POINTERS = {"file", "path", "dir", "env", "name"}
"""Last words of names that point to a secret rather than hold it, such as `api_key_file`."""

_FORMS = re.compile(
    r"\b(?:hf_|sk-|ghp_|github_pat_|glpat-|xox[abp]-)[A-Za-z0-9_-]{12,}|\bAKIA[0-9A-Z]{16}\b"
)
_USER = re.compile(r"((?<!abfs)(?<!abfss)(?<!wasb)(?<!wasbs)://)[^/@\s\"']+@")
"""The user part of a URL, except in URLs of Azure's stores, where it is a container's name."""
# A URL ends at the next `://`, and a user's name at its colon: other forms are searched again from
# every place, hours for a megabyte of `://`.
_QUERY = re.compile(r"(://(?:(?!://)[^?\s\"'])+)\?[\w.%~-]+=[^\s\"']*")
_SIGNED = re.compile(r"://[^/@\s:]*:[^/@\s]+@|https?://[^/@\s]+@")
# A flag's value may follow in the next line, after a backslash.
_FLAG = re.compile(
    r"(?<![\w-])(--?[A-Za-z][\w.-]*)([ \t]+\\\n[ \t]*|[ \t]+|=)((?!-)\S+(?:[ \t]+(?!-)\S+)*)"
)
_NAMED = re.compile(
    r"(?<![\w.-])([\"']?)([A-Za-z_][\w.-]*)\1(\s*[=:]\s*)"
    r"(\"[^\"]*\"|'[^']*'|(?:(?:[Bb]earer|[Bb]asic|[Tt]oken) +)?[^\s,;}\"']+)"
)


def looks_secret(name: str) -> bool:
    """Whether a variable, flag or key of this name holds a secret."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or words[-1] in _POINTERS or " ".join(words) in _PLAIN:
        return False
    return bool(_ALWAYS.intersection(words)) or words[-1] in _LAST or bool(_KEY_ID.search(name))


def has_credentials(text: str) -> bool:
    """Whether the text contains a known key or a URL with credentials."""
    queries = [match[0].partition("?")[2] for match in _QUERY.finditer(text)]
    names = [pair.partition("=")[0] for query in queries for pair in query.split("&")]
    return bool(_SIGNED.search(text) or _FORMS.search(text)) or any(map(looks_secret, names))


def without_credentials(text: str) -> str:
    """Hides known keys, and the user part and query of URLs."""
    text = KEYS.sub(_without_key, text)
    return _FORMS.sub(HIDDEN, _QUERY.sub(rf"\1?{HIDDEN}", _USER.sub(rf"\1{HIDDEN}@", text)))


def _without_key(match: re.Match[str]) -> str:
    start, end = key_span(match)
    return match[0][: start - match.start()] + HIDDEN + match[0][end - match.start() :]


def redact(text: str) -> str:
    """Replaces credentials in URLs, known keys and values of secrets with `***`."""
    text = without_credentials(text)
    text = _FLAG.sub(lambda match: _hidden(match, match[1], match[1] + match[2]), text)
    return _NAMED.sub(
        lambda match: _hidden(match, match[2], f"{match[1]}{match[2]}{match[1]}{match[3]}"), text
    )


def redact_command(words: Sequence[str]) -> list[str]:
    """Redacts secrets in a command line, including those given as the word after a flag.

    Of a serve command nothing is kept: a shell has too many ways to write a secret, and the recipe
    has the values that were read from it.
    """
    result: list[str] = []
    flag = ""  # the one whose words are hidden
    for word in words:
        name, equals, _ = word.partition("=")
        if flag == SERVE_COMMAND:
            result.append(HIDDEN)
            flag = ""
        elif name == SERVE_COMMAND:
            result.append(f"{name}={HIDDEN}" if equals else name)
            flag = "" if equals else name
        elif word.startswith("-"):
            result.append(redact(word))
            flag = name if looks_secret(name) and not equals else ""
        else:
            result.append(HIDDEN if flag else redact(word))
    return result


def _hidden(match: re.Match[str], name: str, shown: str) -> str:
    return shown + HIDDEN if looks_secret(name) else match[0]
