"""Sampling parameters of a request, as named by OpenAI, vLLM and SGLang.

    Exchange(place, **sampling_of(request, "request"))

Responses shaped by parameters other than temperature, top_p and top_k are replayed and trained on
with hard labels, or with the mask of a logged grammar (docs/explanation/traffic.md). Their
constraint is the first of these that applies (`constraint_of` returns `beam_search`, `grammar` or
`other_sampling`; tokens.py adds the others):

- `grammar`: `response_format` other than `text`, `structured_outputs`, `guided_*`, `json_schema`,
  `regex`, `ebnf`, `structural_tag`; `tools` with a required or named `tool_choice`, `strict: true`
  or `parallel_tool_calls: false`
- `min_p`: `min_p` above 0, which vLLM rejects when it speculates
- `penalties`: `presence_penalty`, `frequency_penalty`, `repetition_penalty`
- `other_sampling`: `logit_bias` (also rejected), `bad_words`, `allowed_token_ids`, `min_tokens`,
  `thinking_token_budget`, logits processors
- `beam_search`: always set aside, because its tokens are not samples
"""

import json
from typing import Any

from outrider.data.formats.fields import take_number

NUMBERS = (
    *("temperature", "top_p", "top_k", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)

GRAMMARS = (
    *("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    *("json_schema", "regex", "ebnf", "structural_tag"),
)
"""Parameters that each set a grammar. `guided_*` are vLLM's names before 0.12."""

OTHER = (
    *("logit_bias", "bad_words", "allowed_token_ids", "min_tokens", "min_new_tokens"),
    *("thinking_token_budget", "custom_logit_processor", "logits_processors"),
)
"""Parameters that forbid, favor or force tokens; off if null, 0, false or empty."""

CONSTRAINTS = (
    *("response_format", "tools", "tool_choice", "parallel_tool_calls", "use_beam_search"),
    "extra_body",
    *(*GRAMMARS, *OTHER),
)
"""Request keys that determine `constraint`."""

KINDS = ("json", "json_object", "regex", "choice", "grammar", "structural_tag")
"""Fields of vLLM's StructuredOutputsParams that each set a grammar."""


def sampling_of(request: dict[str, Any], where: str) -> dict[str, Any]:
    """Returns the values of `NUMBERS`, `constraint` and `grammar` as arguments for `Exchange`."""
    request = _sent(request)
    numbers = {name: take_number(request, name, where) for name in NUMBERS}
    return {**numbers, "constraint": constraint_of(request), "grammar": grammar_of(request)}


def _sent(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the body that OpenAI's client sends: `extra_body` is merged into it.

    Dynamo reads parameters of its own from `nvext` (lib/llm/src/protocols/openai/nvext.rs).
    """
    for holder in ("extra_body", "nvext"):
        extra = request.get(holder)
        if isinstance(extra, dict):
            request = {**request, **extra}
    return request


def constraint_of(request: dict[str, Any]) -> str | None:
    """Returns what a request's keys set; None if only `NUMBERS` shaped the tokens."""
    request = _sent(request)
    if request.get("use_beam_search"):
        return "beam_search"
    response_format = request.get("response_format")
    if isinstance(response_format, dict):
        response_format = response_format.get("type")
    if response_format not in (None, "", "text") or _calls_a_tool(request):
        return "grammar"
    if any(request.get(key) not in (None, "", {}) for key in GRAMMARS):
        return "grammar"
    return "other_sampling" if any(request.get(key) for key in OTHER) else None


def grammar_of(request: dict[str, Any]) -> str | None:
    """Returns a grammar that vLLM compiles, as JSON of one field of its StructuredOutputsParams.

    None without a grammar, with several, and where tools or a parameter in `OTHER` shape the
    tokens too. As in vLLM 0.32 (entrypoints/generate/base/protocol.py,
    `structured_outputs_from_response_format`), `response_format` is added to `structured_outputs`.
    """
    tools = request.get("tools") and request.get("tool_choice") != "none"
    if tools or constraint_of(request) != "grammar" or any(request.get(key) for key in OTHER):
        return None
    given = request.get("structured_outputs")
    fields = dict(given) if isinstance(given, dict) else {}
    for kind in KINDS:
        fields.setdefault(kind, request.get(f"guided_{kind}"))
    response_format = request.get("response_format")
    if isinstance(response_format, dict):
        fields |= _of_response_format(response_format)
    grammar = {kind: fields[kind] for kind in KINDS if fields[kind] is not None}
    return json.dumps(grammar) if len(grammar) == 1 else None


def _of_response_format(response_format: dict[str, Any]) -> dict[str, Any]:
    if response_format.get("type") == "json_object":
        return {"json_object": True}
    if response_format.get("type") == "json_schema":
        section = response_format.get("json_schema")
        return {"json": section.get("schema") if isinstance(section, dict) else None}
    if response_format.get("type") == "structural_tag":
        return {"structural_tag": json.dumps(response_format)}
    return {}


def _calls_a_tool(request: dict[str, Any]) -> bool:
    """Whether vLLM compiles the tools into a grammar, to force or restrict calls."""
    choice = request.get("tool_choice")
    tools = request.get("tools")
    if choice == "none" or not isinstance(tools, list) or not tools:
        return False
    functions = [tool.get("function") for tool in tools if isinstance(tool, dict)]
    strict = any(
        isinstance(function, dict) and function.get("strict") is True for function in functions
    )
    return choice not in (None, "auto") or strict or request.get("parallel_tool_calls") is False
