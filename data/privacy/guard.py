"""Privacy guard: every exchange passes it between its reader and the tokenizer.

It counts personal data (`report`), or also replaces it in the prompt by surrogates (`surrogate`); a
value gets the same surrogate in every spelling and throughout the log. A response that holds or
repeats a value cannot be changed and trained on, since it would no longer be on-policy. The
exchange is left out; with `regenerate` its response also gets surrogates and the target generates a
new one (regenerate.py). Logged prompt ids are dropped only where the prompt's text changed.

    guard = PrivacyGuard(config, key, decode=tokenizer.decode)       # one per process
    outcome = guard.apply(exchange)                                  # an Exchange or a Reject
    guard.take_tally()                                               # adds up over processes
"""

import dataclasses
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.files import publish
from outrider.data.config import PrivacyConfig
from outrider.data.exchange import Exchange, Reject
from outrider.data.privacy.tally import PrivacyTally

KEY_FILE = "privacy.key"
KEY_BYTES = 16
"""Minimum length of a key."""

REGENERATE = "privacy_regenerate"
"""Reject: the response holds personal data and would have to be regenerated."""
IDS_ONLY = "privacy_ids_only"
"""Reject: the prompt holds personal data and is logged as token ids alone."""
UNREADABLE = "privacy_unreadable"
"""Reject: its text cannot be read."""
LEFT_OUT = frozenset({REGENERATE, IDS_ONLY, UNREADABLE})
"""Reasons that do not count towards `traffic.max_reject_fraction`: the log is not at fault."""

METADATA = ("session", "user", "tenant", "route")
COMPLETION = tuple(
    field.name
    for field in dataclasses.fields(Exchange)
    if field.name in ("reasoning", "content", "tool_calls")
)
Texts = list[tuple[str, str]]
"""(what precedes a text, the text)"""


class PrivacyGuard:
    """Applies the recipe's `privacy` section to one exchange at a time.

    `key` is required for surrogates (`surrogate_key`). `decode` turns token ids into text. Without
    it, logged ids are assumed to match the logged text, and an exchange of ids alone cannot be
    examined.
    """

    def __init__(
        self,
        config: PrivacyConfig,
        key: bytes | None = None,
        decode: Callable[[list[int]], str] | None = None,
    ):
        self.config = config
        self.decode = decode
        self.tally = PrivacyTally()
        if config.mode == "off":
            return
        from outrider.data.privacy.detection import Finder
        from outrider.data.privacy.surrogates import Surrogates

        self._finder = Finder(config)
        if config.mode == "surrogate":
            if key is None:
                raise ValueError("privacy.mode: surrogate needs a key")
            self._surrogates = Surrogates(key, config.phone_regions)

    def apply(self, exchange: Exchange) -> Exchange | Reject:
        """Returns the exchange as it may be stored, or why it may not."""
        if self.config.mode == "off":
            return exchange
        self.tally.exchanges += 1
        try:
            outcome = self._looked_at(exchange)
        except RecursionError:
            outcome = Reject(UNREADABLE, "nested too deeply")
        if isinstance(outcome, Reject):
            outcome.place = exchange.place
            self.tally.left_out[outcome.reason] += 1
        return outcome

    def take_tally(self) -> PrivacyTally:
        """Returns the counts since the last call, for one part of a log."""
        taken, self.tally = self.tally, PrivacyTally()
        return taken

    def _looked_at(self, exchange: Exchange) -> Exchange | Reject:
        prompt, completion = self._prompt(exchange), self._completion(exchange)
        if prompt is None or completion is None:
            self.tally.without_text += 1
            if self.config.mode == "surrogate":
                return Reject(UNREADABLE, "logged as token ids alone")
        metadata = [("", getattr(exchange, name) or "") for name in METADATA]
        fields = {"prompt": prompt or [], "completion": completion or [], "metadata": metadata}
        found: set[tuple[str, str]] = set()
        for field, texts in fields.items():
            for before, text in texts:
                found.update(self._find(field, before, text))
        if not found:
            return exchange
        self.tally.with_any += 1
        if self.config.mode == "surrogate":
            return self._replaced(exchange, fields, found)
        response = "\0".join(text for _, text in fields["completion"])
        self.tally.in_completion += any(value in response for _, value in found)
        return exchange

    def _replaced(
        self, exchange: Exchange, fields: dict[str, Texts], found: set[tuple[str, str]]
    ) -> Exchange | Reject:
        from outrider.data.privacy.surrogates import Replacements

        logged_as_text = exchange.messages is not None or exchange.prompt_text is not None
        if logged_as_text and exchange.prompt_token_ids is not None:
            # The ids were examined; the text that replaces them was not.
            for before, text in _prompt_texts(exchange):
                found.update(self._find(None, before, text))
        kinds: list[str] = list(self.config.entities)
        in_order = sorted(found, key=lambda value: (kinds.index(value[0]), value[1]))
        replacements = Replacements(self._surrogates.value(kind, text) for kind, text in in_order)
        holds: dict[str, bool] = {}
        for name, texts in fields.items():
            holds[name] = any(replacements.hold(text) for _, text in texts)
        changes: dict[str, Any] = {
            name: replacements.sub(getattr(exchange, name))
            for name in METADATA
            if getattr(exchange, name)
        }
        if holds["completion"]:
            self.tally.in_completion += 1
            if not self.config.regenerate:
                kinds = sorted({kind for kind, _ in found})
                return Reject(REGENERATE, f"the response holds personal data ({', '.join(kinds)})")
            changes |= self._to_regenerate(exchange, replacements.sub)
        if holds["prompt"]:
            if not logged_as_text:
                return Reject(
                    IDS_ONLY, "the prompt is logged as token ids alone and holds personal data"
                )
            self.tally.ids_dropped += exchange.prompt_token_ids is not None
            changes |= {
                "prompt_token_ids": None,
                "prompt_tokens": None,
                "messages": _mapped(exchange.messages, replacements.sub),
            }
            changes["prompt_text"] = exchange.prompt_text and replacements.sub(exchange.prompt_text)
            changes["template_arguments"] = _mapped(exchange.template_arguments, replacements.sub)
        self.tally.replaced += 1
        self.tally.to_regenerate += changes.get("regenerate", False)
        return dataclasses.replace(exchange, **changes)

    def _to_regenerate(self, exchange: Exchange, change: Callable[[str], str]) -> dict[str, Any]:
        """The response with surrogates, without token counts and stop strings of the logged one."""
        if exchange.completion_token_ids is not None and self.decode is not None:
            reasoning, content, calls = (
                None,
                change(self.decode(exchange.completion_token_ids)),
                None,
            )
        else:
            reasoning, content, calls = (
                _mapped(value, change)
                for value in (exchange.reasoning, exchange.content, exchange.tool_calls)
            )
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

    def _prompt(self, exchange: Exchange) -> Texts | None:
        """Texts of the prompt; None where they cannot be read."""
        if exchange.prompt_token_ids is not None and self.decode is not None:
            return [("", self.decode(exchange.prompt_token_ids))]
        if exchange.messages is None and exchange.prompt_text is None:
            return None
        return list(_prompt_texts(exchange))

    def _completion(self, exchange: Exchange) -> Texts | None:
        if exchange.completion_token_ids is not None and self.decode is not None:
            return [("", self.decode(exchange.completion_token_ids))]
        texts: Texts = []
        for name in COMPLETION:
            texts += _texts(getattr(exchange, name))
        return texts or (None if exchange.completion_token_ids is not None else [])

    def _find(self, field: str | None, before: str, text: str) -> Iterator[tuple[str, str]]:
        """Returns (kind, value) of all findings; counts them under `field`."""
        found = self._finder.find(text, before)
        if field is not None:
            self.tally.characters += len(text)
            self.tally.found.update(f"{one.kind}.{field}" for one in found)
        return ((one.kind, text[one.start : one.end]) for one in found)


def surrogate_key(config: PrivacyConfig, own: Path) -> bytes | None:
    """Reads the key of surrogates, or creates the run's own at `own`; None if not needed."""
    if config.mode != "surrogate":
        return None
    path = own if config.key_file is None else Path(config.key_file).expanduser()
    if config.key_file is None and not own.exists():
        with publish(own) as temporary:
            temporary.touch(mode=0o600)
            temporary.write_bytes(os.urandom(32))
    try:
        key = path.read_bytes()
    except OSError as error:
        raise OutriderError(
            f"privacy.key_file = {config.key_file!r}: cannot be read ({error.strerror}); name a "
            f"file with at least {KEY_BYTES} random bytes, or leave the key out to create one"
        ) from None
    if len(key) < KEY_BYTES:
        raise OutriderError(
            f"{path}: {len(key)} bytes are too short for a key, whose surrogates could be guessed; "
            f"privacy.key_file needs at least {KEY_BYTES}, such as from `head -c 32 /dev/urandom`"
        )
    return key


def _prompt_texts(exchange: Exchange) -> Iterator[tuple[str, str]]:
    yield from _texts(exchange.messages)
    yield from _texts(exchange.template_arguments)
    yield from _texts(exchange.prompt_text)


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yields every text of a JSON value, also integers and keys, each with its key."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield "", name
            yield from _texts(inner, f"{name}: ")
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner, key)
    elif isinstance(value, str) or _may_be_personal(value):
        yield key, str(value)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Changes every text, integer and key that `_texts` yields."""
    if isinstance(value, dict):
        return {change(name): _mapped(inner, change) for name, inner in value.items()}
    if isinstance(value, list):
        return [_mapped(inner, change) for inner in value]
    if isinstance(value, str):
        return change(value)
    return int(change(str(value))) if _may_be_personal(value) else value


def _may_be_personal(value: Any) -> bool:
    """Whether a value is an integer as long as a telephone or card number."""
    return type(value) is int and 10**6 <= value < 10**19
