"""Recognizes answers that a gateway served from its cache.

    check_generated(row)        # a `Reject` if the answer was generated for an earlier request

The answer was generated for an earlier request, which has its own row. Prefix caches of engines
(`cached_tokens`) are another matter: they count tokens and do not change the answer's origin.
"""

import re
from typing import Any

from outrider.data.exchange import CACHED, Reject
from outrider.data.formats.rows.embedded import object_of

FLAGS = frozenset(
    {
        *("cache_hit", "cachehit", "cached", "is_cached", "from_cache"),
        *("cache_status", "cachestatus", "helicone_cache", "gptcache"),
        *("x_portkey_cache_status", "cf_aig_cache_status", "x_litellm_cache_hit"),
        *("x_cache_status", "x_kong_ai_cache_status"),
    }
)
"""Fields of a cache hit, in lower case with `_`: LiteLLM (`cache_hit`, also in what it sends to
Langfuse), Portkey (`cache_status`), Kong (`ai.cache.cache_status`), Cloudflare (`cached`), Bifrost
(`cache_debug.cache_hit`), GPTCache, and response headers of these and of Helicone. Inspect has
`cache: read`."""

HIT = re.compile(r"(true|t|1|yes|y|(\w+ )?hit)", re.IGNORECASE)
"""Values of a hit; Portkey has `HIT` and `SEMANTIC HIT`, LiteLLM `True` as text, PostgreSQL `t`,
and MySQL, SQLite and Braintrust's `metrics` 1."""

NO_REFERENCE = "00000000-0000-0000-0000-000000000000"
"""Helicone's `cache_reference_id` of a generated answer."""

EVENTS = frozenset({"event", "event_type", "type"})
HIT_EVENT = re.compile(
    r"(?:(?:llm|response|completion|answer|semantic|exact|gateway)[._-])?cache[._-]?hit",
    re.IGNORECASE,
)
"""Fields and values with which an application logs a hit, such as `llm.cache_hit`. Hits of an
engine's prefix cache are another matter."""

TAG = re.compile(r"cache_hit:true", re.IGNORECASE)
"""Tag that LiteLLM gives an observation in Langfuse."""

BODIES = frozenset({"messages", "choices", "prompt", "tools", "usage", "input", "output"})
"""Keys whose values are the customer's, or count tokens."""

LONGEST_TEXT = 100_000
"""Longer texts are bodies, not metadata."""

DEEPEST = 5
"""Levels of a row that are searched."""


def check_generated(row: dict[str, Any], depth: int = 0) -> None:
    """Raises a `Reject` if a field outside the messages marks a cache hit."""
    for key, value in row.items():
        if key in BODIES:
            continue
        holder = _object_about_caches(value)
        if holder is not None:
            if depth < DEEPEST:
                check_generated(holder, depth + 1)
            continue
        # Names of flat attributes have dots.
        name = key.rpartition(".")[2].lower().replace("-", "_")
        is_hit = name in FLAGS and HIT.fullmatch(str(value).strip()) is not None
        is_hit = is_hit or (name == "cache" and value == "read")
        is_hit = is_hit or (name in EVENTS and HIT_EVENT.fullmatch(str(value)) is not None)
        is_copy = name in ("cache_reference_id", "cachereferenceid") and value
        is_tagged = isinstance(value, list) and any(
            TAG.fullmatch(tag) for tag in value if isinstance(tag, str)
        )
        if is_hit or is_tagged or (is_copy and value != NO_REFERENCE):
            raise Reject(CACHED, f"{key} marks an answer from the gateway's cache")


def _object_about_caches(value: Any) -> dict[str, Any] | None:
    """Returns an object, also one written as text that has a word about caches."""
    if isinstance(value, str) and ("cache" not in value or len(value) > LONGEST_TEXT):
        return None
    return object_of(value)
