"""Privacy guard, applied to every exchange before it is tokenized.

It counts personal data (`report`), or also replaces it in prompts with surrogates (`surrogate`). A
value gets the same surrogate in every spelling and throughout the log. A response that contains
such a value cannot be changed and trained on, since it would no longer be on-policy. The exchange
is left out unless `regenerate` is set: then its response also gets surrogates, and the target
generates another (regenerate.py). Logged prompt ids are dropped only if the prompt's text changed.

    guard = PrivacyGuard(config, key, decode=tokenizer.decode)       # one per process
    guarded = guard.apply(exchange)                                  # or raises Reject
    guard.tally                                                      # can be summed over processes
"""

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from pydantic import Field

from outrider.common.errors import OutriderError
from outrider.common.files import publish, write_json
from outrider.data.config import PrivacyConfig
from outrider.data.exchange import Exchange, Reject, Sums

PRIVACY_FILE = "privacy.json"

KEY_FILE = "privacy.key"
KEY_BYTES = 16
"""Minimum length of a key."""

REGENERATE, IDS_ONLY = "privacy_regenerate", "privacy_ids_only"
"""Reject reasons: the response contains personal data and would have to be regenerated; the prompt
contains personal data and is logged only as token ids."""
LEFT_OUT = frozenset({REGENERATE, IDS_ONLY})
"""Reasons not counted towards `traffic.max_reject_fraction`, since the log is not at fault."""

METADATA = ("session", "user", "tenant", "route")
Texts = list[tuple[str, str]]
"""Pairs of a JSON key (empty if there is none) and the text under it."""


class PrivacyTally(Sums):
    """Counts of exchanges and findings."""

    exchanges: int = 0
    with_any: int = 0
    """Exchanges with personal data."""
    in_completion: int = 0
    """Exchanges whose response has personal data, detected there or elsewhere in the exchange."""
    replaced: int = 0
    """Exchanges with surrogates."""
    to_regenerate: int = 0
    """Exchanges with surrogates whose response the target must regenerate."""
    left_out: Counter[str] = Field(default_factory=Counter)
    """Rejected exchanges by reason."""
    found: Counter[str] = Field(default_factory=Counter)
    """Occurrences by `KIND.field`: prompt, completion (with reasoning and tool calls), metadata."""

    def write(self, config: PrivacyConfig, path: Path) -> None:
        """Publishes the summary with owner-only access, since even counts are confidential."""
        occurrences: dict[str, dict[str, int]] = {}
        for kind in config.entities:
            fields = ("prompt", "completion", "metadata")
            counts = {field: self.found[f"{kind}.{field}"] for field in fields}
            if any(counts.values()):
                occurrences[kind] = counts
        summary = {
            "mode": config.mode,
            "min_score": config.min_score,
            "looked_for": list(config.entities),
            **self.model_dump(),
            "found": occurrences,
        }
        write_json(path, summary, private=True)

    def line(self, config: PrivacyConfig) -> str:
        """Returns one line for the terminal."""
        line = f"privacy: {self.with_any:,} of {self.exchanges:,} exchanges contain personal data, "
        line += f"{self.in_completion:,} in the response (traffic/{PRIVACY_FILE})"
        if config.mode == "surrogate":
            line += f"; replaced in {self.replaced:,}, {self.left_out.total():,} left out, "
            line += f"{self.to_regenerate:,} responses to regenerate"
        return line


class PrivacyGuard:
    """Applies the recipe's `privacy` section to one exchange at a time.

    `key` seeds the surrogates (`privacy_key`). `decode` turns token ids into text.
    """

    def __init__(
        self, config: PrivacyConfig, key: bytes, decode: Callable[[list[int]], str]
    ) -> None:
        from outrider.data.privacy.detection import PersonalDataFinder
        from outrider.data.privacy.surrogates import Surrogates

        self.config = config
        self.decode = decode
        self.tally = PrivacyTally()
        self._finder = PersonalDataFinder(config)
        self._surrogates = Surrogates(key, config.phone_regions)

    def apply(self, exchange: Exchange) -> Exchange:
        """Returns the exchange in a form that may be stored.

        Raises:
            Reject: If there is no such form.
        """
        self.tally.exchanges += 1
        replaces = self.config.mode == "surrogate"
        if replaces and exchange.grammar and self._values([("", exchange.grammar)]):
            # A schema may list customers; without it, the response has hard labels.
            exchange = dataclasses.replace(exchange, grammar=None)
        prompt_ids = exchange.prompt_token_ids
        completion_ids = exchange.completion_token_ids
        prompt = _prompt_of(exchange) if prompt_ids is None else self.decode(prompt_ids)
        response = [exchange.reasoning, exchange.content, exchange.tool_calls]
        completion = response if completion_ids is None else self.decode(completion_ids)
        metadata = [getattr(exchange, name) for name in METADATA]
        fields = {
            "prompt": _texts(prompt),
            "completion": _texts(completion),
            "metadata": _texts(metadata),
        }
        personal_data: set[tuple[str, str]] = set()
        for field, texts in fields.items():
            values = self._values(texts)
            self.tally.found.update(f"{kind}.{field}" for kind, _ in values)
            personal_data.update(values)
        if not personal_data:
            return exchange
        self.tally.with_any += 1
        if self.config.mode == "surrogate":
            return self._replaced(exchange, fields, personal_data)
        # A separator that no value contains, so that none is found across two texts.
        answer = "\0".join(text for _, text in fields["completion"])
        self.tally.in_completion += any(value in answer for _, value in personal_data)
        return exchange

    def _replaced(
        self, exchange: Exchange, fields: dict[str, Texts], personal_data: set[tuple[str, str]]
    ) -> Exchange:
        logged_as_text = exchange.messages is not None or exchange.prompt_text is not None
        if logged_as_text and exchange.prompt_token_ids is not None:
            # So far, only the ids have been searched, not the text that replaces them.
            personal_data.update(self._values(_texts(_prompt_of(exchange))))
        kinds: list[str] = list(self.config.entities)
        # Sorted, because sets are ordered by salted hashes and surrogates are drawn in this order.
        in_order = sorted(personal_data, key=lambda value: (kinds.index(value[0]), value[1]))
        replacements = self._surrogates.replacements(in_order)
        holds = {
            name: any(replacements.hold(text) for _, text in texts)
            for name, texts in fields.items()
        }

        def substitute(value: Any) -> Any:
            return _mapped(value, lambda text, key: replacements.sub(text))

        changes = {name: substitute(getattr(exchange, name)) for name in METADATA}
        if holds["completion"]:
            self.tally.in_completion += 1
            if not self.config.regenerate:
                kinds = sorted({kind for kind, _ in personal_data})
                self._leave_out(
                    REGENERATE, f"the response contains personal data ({', '.join(kinds)})"
                )
            changes |= self._to_regenerate(exchange, substitute)
        # Token ids of a changed text are no longer those of the endpoint; they are made again from
        # the text.
        if holds["prompt"]:
            if not logged_as_text:
                self._leave_out(
                    IDS_ONLY, "the prompt contains personal data and is logged only as token ids"
                )
            changes |= {
                "prompt_token_ids": None,
                "prompt_tokens": None,
                "messages": substitute(exchange.messages),
                "prompt_text": substitute(exchange.prompt_text),
                "template_arguments": substitute(exchange.template_arguments),
            }
        self.tally.replaced += 1
        self.tally.to_regenerate += changes.get("regenerate", False)
        return dataclasses.replace(exchange, **changes)

    def _leave_out(self, reason: str, detail: str) -> NoReturn:
        self.tally.left_out[reason] += 1
        raise Reject(reason, detail)

    def _to_regenerate(
        self, exchange: Exchange, substitute: Callable[[Any], Any]
    ) -> dict[str, Any]:
        """Returns the response with surrogates, without logged counts and stop strings."""
        response = [exchange.reasoning, exchange.content, exchange.tool_calls]
        if exchange.completion_token_ids is not None:
            response = [None, self.decode(exchange.completion_token_ids), None]
        reasoning, content, calls = substitute(response)
        if calls:
            content = (content or "") + json.dumps(calls, ensure_ascii=False)
        return {
            "regenerate": True,
            "completion_token_ids": None,
            "reasoning": reasoning,
            "content": content,
            "tool_calls": None,
            "completion_tokens": None,
            "stop_reason": None,
            "stop_strings": (),
        }

    def _values(self, texts: Texts) -> list[tuple[str, str]]:
        """Returns the kind and value of each finding."""
        return [
            (one.kind, text[one.start : one.end])
            for before, text in texts
            for one in self._finder.find(text, before)
        ]


def privacy_key(config: PrivacyConfig, default_path: Path) -> bytes:
    """Reads the key for surrogates and digests.

    Without `privacy.key_file`, the key is in the file `default_path`, which is created if missing.
    """
    path = default_path if config.key_file is None else Path(config.key_file).expanduser()
    if config.key_file is None and not default_path.exists():
        with publish(default_path) as temporary:
            temporary.touch(mode=0o600)
            # 32 bytes: the key length of HMAC-SHA256 beyond which more adds nothing (RFC 2104,
            # section 3).
            temporary.write_bytes(os.urandom(32))
    try:
        key = path.read_bytes()
    except OSError as error:
        raise OutriderError(
            f"privacy.key_file = {config.key_file!r}: cannot be read ({error.strerror}); name a "
            f"file with at least {KEY_BYTES} random bytes, or remove the key to create a file"
        ) from None
    if len(key) < KEY_BYTES:
        raise OutriderError(
            f"{path}: {len(key)} bytes are too short for a key: surrogates could be guessed; "
            f"privacy.key_file needs at least {KEY_BYTES}, such as from `head -c 32 /dev/urandom`"
        )
    return key


def _prompt_of(exchange: Exchange) -> list[Any]:
    return [exchange.messages, exchange.template_arguments, exchange.prompt_text]


def _texts(value: Any) -> Texts:
    """Lists the strings, keys and long integers of a JSON value as `Texts`."""
    texts: Texts = []

    def note(text: str, key: str) -> str:
        texts.append((key, text))
        return text

    _mapped(value, note)
    return texts


def _mapped(value: Any, change: Callable[[str, str], str], key: str = "") -> Any:
    """Changes keys, strings, and integers with 7 to 19 digits (telephone, card)."""
    if isinstance(value, dict):
        return {
            change(name, ""): _mapped(inner, change, f"{name}: ") for name, inner in value.items()
        }
    if isinstance(value, list):
        return [_mapped(inner, change, key) for inner in value]
    if isinstance(value, str):
        return change(value, key)
    if type(value) is int and 10**6 <= value < 10**19:
        return int(change(str(value), key))
    return value
