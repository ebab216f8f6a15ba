"""Recognizes failed requests and rows of other APIs, which are set aside.

    check_completion(row, request, response)    # a `Reject` unless the response has choices

Gateways log every request: refused ones (429, 5xx), embeddings, the Responses API, Anthropic's
messages. None of them is damage. OpenAI's schema of a chat or text completion requires `choices` in
the response and `messages` or `prompt` in the request, so only a response without choices is looked
at here.
"""

import http
import re
from typing import Any

from outrider.data.exchange import Reject
from outrider.data.formats.rows.paths import find_field

STATUSES = (
    *("status_code", "response_status_code", "response_status", "response_code"),
    *("http_status", "http_status_code", "http_code", "status"),
)
"""Keys of an HTTP status: Databricks, OpenAI Batch, Portkey, Helicone, Envoy, Kong."""

FAILURES = frozenset({"failure", "failed", "error"})
"""Values of `status` for failed requests: LiteLLM, Portkey, the Responses API."""

ERROR_KEYS = frozenset(
    {
        *("error", "errors", "error_code", "error_message", "errorMessage", "errorCode"),
        "error_info",
        *("exception", "detail", "fault", "__type"),
    }
)
"""Keys of errors: OpenAI, Databricks, LiteLLM, Opik, FastAPI, Apigee, AWS."""

COMPLETIONS = frozenset({"chat.completion", "chat.completion.chunk", "text_completion"})
"""Values of `object` for OpenAI's chat and text completions."""

OTHER_APIS = frozenset(
    {
        *("data", "results", "output", "embedding", "embeddings", "predictions", "candidates"),
        *("content", "completion", "generation", "generated_text", "text", "tokens", "done"),
        *("input_tokens", "totalTokens", "stopReason", "stop_reason", "pages", "jsonrpc"),
    }
)
"""Keys of other responses to `messages` or `prompt`: OpenAI's images, Anthropic, Gemini, Bedrock,
Cohere, TGI, token counts."""

LOG_CHATS = "only /v1/chat/completions, /v1/completions, /v1/responses and /v1/messages are read"

_CLOSED = re.compile(r"(?:.*[/.:])?(?:claude|chatgpt|gpt-[345]|o[134](?:-|$)|gemini|grok)", re.I)
"""Names of models whose weights nobody else can serve, with a provider before them."""

PATHS = ("path", "url", "uri", "endpoint", "request_path", "request_url", "route_path")
"""Keys of a request's path."""

REQUEST_LINE = re.compile(r"[A-Z]{3,7} (/\S*) HTTP/[\d.]+\Z")

GENERATING = re.compile(
    r"(completions?|invocations|generate|chat|predict|v1/messages|v1/responses)/?$"
)
"""Ends of the paths of endpoints that may generate text."""

LOG_PAYLOADS = (
    "Kong's statistics, without texts: set logging.log_payloads: true in the plugin ai-proxy or"
    " ai-proxy-advanced"
)

LOG_ATTRIBUTES = (
    "Higress' statistics, without texts: set use_default_attributes: true in the plugin"
    " ai-statistics, instead of use_default_response_attributes"
)

STATISTICS = {
    **{
        path: LOG_PAYLOADS
        for path in ("ai.proxy.usage", "ai.ai-proxy.usage", "ai.ai-proxy-advanced.usage")
    },
    "ai_log.output_token": LOG_ATTRIBUTES,
}
"""Paths of what a gateway logs about a call, next to which the bodies are missing, and the option
that logs them."""

_PROXY_TEXT = re.compile(
    r"\s*<(!doctype|\?xml|html|head|body|title|center|h1|error)\b"
    r"|\s*(upstream |no healthy upstream|stream timeout|downstream duration timeout|"
    + "|".join(re.escape(status.phrase) for status in http.HTTPStatus if status >= 400)
    + ")",
    re.IGNORECASE,
)
"""Begin of a body that Envoy, nginx or a load balancer wrote instead of the engine."""


def check_completion(row: dict[str, Any], request: Any, response: Any) -> None:
    """Raises a `Reject` if a request failed or belongs to another API.

    `row` holds what was logged besides. Returns if the response may be a completion, also a
    damaged one, and if it is still a stream or text.
    """
    answer = response if isinstance(response, dict) else {}
    # HTTP-shaped rows have the status next to the body.
    parts = (row, row.get("response"), answer)
    for side in (part for part in parts if isinstance(part, dict)):
        check_status(side)
    if isinstance(response, str) and is_proxys_text(response):
        raise Reject("error_response", "a proxy's text instead of a response")
    if answer.get("error"):
        raise Reject("error_response")
    if not answer.get("choices") and not isinstance(response, str | list):
        _check_failure(row, answer)
        _check_api(row, request if isinstance(request, dict) else {}, answer)


def check_access_row(row: dict[str, Any]) -> None:
    """Raises a `Reject` if an access log's row without texts failed, or is of another endpoint."""
    check_status(row)
    if "method" in row and not row.keys().isdisjoint(STATUSES):
        _check_endpoint(row, {})


def check_status(side: dict[str, Any]) -> None:
    """Raises a `Reject` if a row or a side of it has the HTTP status of a failed request."""
    code = failed_status(side)
    if code is not None:
        raise Reject("error_response", f"HTTP status {code}")


def is_error(body: dict[str, Any]) -> bool:
    """Whether an object is the body of a failed request: OpenAI, vLLM."""
    error = body.get("error")
    return body.get("object") == "error" or (isinstance(error, dict) and "message" in error)


def is_served(response: Any) -> bool:
    """Whether an object is a response of Anthropic's Messages or OpenAI's Responses API, as vLLM
    serves them: not a closed model's."""
    is_one = is_anthropic(response) or _is_of_responses(response)
    return is_one and not _CLOSED.match(str(response.get("model")))


def is_anthropic(response: Any) -> bool:
    """Whether an object is a response of Anthropic's Messages API."""
    if not isinstance(response, dict) or response.get("type") != "message":
        return False
    return "stop_reason" in response and isinstance(response.get("content"), list)


def _is_of_responses(response: Any) -> bool:
    if not isinstance(response, dict) or response.get("object") != "response":
        return False
    return isinstance(response.get("output"), list)


def is_proxys_text(text: str) -> bool:
    """Whether a body was written by a proxy instead of the engine."""
    return _PROXY_TEXT.match(text) is not None


def _check_failure(row: dict[str, Any], answer: dict[str, Any]) -> None:
    """Raises a `Reject` if a row without choices says why."""
    for side in (row, answer):
        if any(side.get(key) for key in ERROR_KEYS):
            raise Reject("error_response")
        states = {str(side.get(key)).lower() for key in ("status", "status_code")}
        if states & FAILURES or side.get("is_success") is False:
            raise Reject("error_response")
    # vLLM before 0.10 and SGLang; Kong and AWS.
    if "error" in (answer.get("object"), answer.get("type")):
        raise Reject("error_response")
    texts = [answer.get(key) for key in ("message", "Message")]
    if "choices" not in answer and any(isinstance(text, str) for text in texts):
        raise Reject("error_response")


def _check_api(row: dict[str, Any], request: dict[str, Any], answer: dict[str, Any]) -> None:
    """Raises a `Reject` if a row without choices belongs to another API."""
    _check_endpoint(row, request)
    if is_served(answer):
        return
    if not answer or "choices" in answer or "body" in answer:
        return
    is_completion = str(answer.get("object", "chat.completion")) in COMPLETIONS
    is_anthropic = isinstance(answer.get("type"), str)
    is_ollama_or_cohere = isinstance(answer.get("message"), dict)
    has_other_keys = bool(answer.keys() & OTHER_APIS)
    if not is_completion or is_anthropic or is_ollama_or_cohere or has_other_keys:
        raise Reject("not_a_generation", f"the response is another API's; {LOG_CHATS}")
    if request and all(request.get(key) is None for key in ("messages", "prompt", "body")):
        raise Reject("not_a_generation", f"the request is another API's; {LOG_CHATS}")


def _check_endpoint(row: dict[str, Any], request: dict[str, Any]) -> None:
    """Raises a `Reject` if a row is a gateway's statistics, or has another endpoint's path."""
    for counted, remedy in STATISTICS.items():
        where = find_field(row, counted)
        payload = where.holder.get("payload", {}) if where else None
        if isinstance(payload, dict) and "response" not in payload:
            raise Reject("content_not_logged", remedy)
    paths = [side.get(key) for side in (row, request) for key in PATHS]
    for path in (*paths, path_of_line(row.get("request"))):
        if not isinstance(path, str) or "/" not in path:
            continue
        if not generates(path):
            raise Reject("not_a_generation", f"the path is another endpoint's; {LOG_CHATS}")


def generates(path: str) -> bool:
    """Whether a URL's path is that of an endpoint that may generate text."""
    return GENERATING.search(path.partition("?")[0]) is not None


def path_of_line(value: Any) -> str | None:
    """Returns the path in an HTTP request's first line, as nginx logs it; None for any other."""
    line = REQUEST_LINE.match(value) if isinstance(value, str) else None
    return line[1] if line else None


def _header(side: dict[str, Any], name: str) -> Any:
    """Returns the value of a header in an HTTP message that Envoy has tapped."""
    headers = side.get("headers")
    pairs = (
        [pair for pair in headers if isinstance(pair, dict)] if isinstance(headers, list) else []
    )
    return next((pair.get("value") for pair in pairs if pair.get("key") == name), None)


def failed_status(side: dict[str, Any]) -> int | None:
    """Returns the HTTP status of a failed request, if one was logged."""
    for key in STATUSES:
        value: Any = side.get(key, _header(side, f":{key}"))
        if isinstance(value, str) and value.isdecimal() and len(value) <= 3:
            value = int(value)
        if type(value) is not int:
            continue
        if 400 <= value < 600:
            return value
        if key == "response_code" and value == 0:  # Envoy: the client closed the connection
            return value
    return None
