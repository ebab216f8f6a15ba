"""Requests and responses of engines' and clouds' own APIs, as OpenAI's.

- Llama's fields on Bedrock, which imported R1-Distill models have, too: `prompt`, `max_gen_len`;
  `generation`, `stop_reason`, `generation_token_count` (user guide, November 2026)
- SGLang's `/generate`: `text` or `input_ids`, `sampling_params`; `text`, `output_ids`, `meta_info`
  (0.5, managers/io_struct.py)
- TGI's `/generate`, which SageMaker's LMI has too: `inputs`, `parameters`; `generated_text`,
  `details` (TGI 3, router/src/lib.rs)
- Ollama's `/api/chat` and `/api/generate`: `messages`, or `system` and `prompt`, `options`;
  `message` or `response`, `thinking`, `done` (0.13, api/types.go)
- llama.cpp's `/completion`: `prompt`, `n_predict`; `content`, `stop_type`, `tokens_predicted`, and
  with `return_tokens` the ids in `tokens` (tools/server/README.md, November 2026)
- Bedrock's Converse: `system` and `messages` of parts, `inferenceConfig`; `output.message`,
  `stopReason` (API reference, November 2026)
- A service's own row of text: a rendered `prompt`, and the completion under any usual name
"""

import re
from typing import Any

from outrider.data.exchange import Reject
from outrider.data.formats.calls.finish_reasons import STOP_STRING, end_by_limit
from outrider.data.formats.fields import parse_number, take, take_count

CONVERSE = "inferenceConfig"

OF_CONVERSE = {"maxTokens": "max_tokens", "topP": "top_p", "stopSequences": "stop"}
"""OpenAI's names of Converse's parameters."""

OF_TGI = {"max_new_tokens": "max_tokens"}
"""OpenAI's names of TGI's parameters."""

OF_OLLAMA = {"num_predict": "max_tokens"}
"""OpenAI's names of Ollama's parameters."""

OF_LLAMA_CPP = {"n_predict": "max_tokens"}
"""OpenAI's names of llama.cpp's parameters."""

STOPS_OF_LLAMA_CPP = {"eos": "stop", "word": STOP_STRING, "limit": "length"}
"""Values of llama.cpp's `stop_type`, and their names here."""

COMPLETIONS = ("completion", "response", "output", "generated_text", "generation")
"""Keys of the text that a service logs next to its prompt."""

COUNTS = ("completion_tokens", "num_generated_tokens", "output_tokens", "num_tokens")
"""Names of the number of tokens of a text: OpenAI; Ray Data LLM; others."""

OLLAMA = "done"
"""The key of a response that only Ollama's have."""

_PIECE_OF_OLLAMA = re.compile(r'^\{.*"(?:message|response)":.*"done": ?false')

_RENDERED = re.compile(r"<[|｜][A-Za-z_▁]+[|｜]>|\[/INST\]|<start_of_turn>")
"""A token of a chat template. A prompt without one may be a user's, which is not the engine's."""


def native_request(holder: dict[str, Any]) -> dict[str, Any] | None:
    """Returns a request to one of these APIs as OpenAI's; None for any other."""
    if isinstance(holder.get("options"), dict):
        return _of_ollama(holder)
    if isinstance(holder.get("messages"), list):
        return _of_converse(holder)
    if "n_predict" in holder and isinstance(holder.get("prompt"), str | list):
        return _renamed(holder, OF_LLAMA_CPP)
    parameters = holder.get("parameters")
    if isinstance(holder.get("inputs"), str) and isinstance(parameters, dict):
        return {
            **_renamed(parameters, OF_TGI),
            "prompt": holder["inputs"],
            "model": holder.get("model"),
        }
    sampling = holder.get("sampling_params")
    prompt = holder.get("input_ids", holder.get("text"))
    if not isinstance(sampling, dict) or not isinstance(prompt, str | list) or "rid" in holder:
        return None
    return {**sampling, "prompt": prompt, "model": holder.get("model")}


def native_response(holder: dict[str, Any]) -> dict[str, Any] | None:
    """Returns a response as OpenAI's; None if it is not one of these APIs'."""
    if isinstance(holder.get("generation"), str) and "stop_reason" in holder:
        choice = {"text": holder["generation"], "finish_reason": holder["stop_reason"]}
        usage = {
            "completion_tokens": holder.get("generation_token_count"),
            "prompt_tokens": holder.get("prompt_token_count"),
        }
        return {"choices": [choice], "usage": usage}
    about = holder.get("meta_info")
    if isinstance(about, dict) and isinstance(holder.get("text"), str):
        return _of_sglang(holder, about)
    if isinstance(holder.get("generated_text"), str) and isinstance(holder.get("details"), dict):
        return _of_tgi(holder, holder["details"])
    if isinstance(holder.get("content"), str) and "tokens_predicted" in holder:
        return _of_llama_cpp(holder)
    if is_of_ollama(holder):
        return join_ollama_stream([holder])
    output = holder.get("output")
    if "stopReason" in holder and isinstance(output, dict):
        choice = {"message": output.get("message"), "finish_reason": holder["stopReason"]}
        counts = holder.get("usage")
        count = counts.get("outputTokens") if isinstance(counts, dict) else None
        return {"choices": [choice], "usage": {"completion_tokens": count}}
    return None


def join_tgi_stream(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns a stream of TGI's as OpenAI's response; its last piece has the whole text.

    Raises:
        Reject: If the last piece is missing.
    """
    last = pieces[-1]
    if not isinstance(last.get("generated_text"), str):
        raise Reject("stream_cut", "no last piece of TGI's, which has generated_text")
    return _of_tgi(last, take(last, "details", dict, "event") or {})


def _of_tgi(holder: dict[str, Any], details: dict[str, Any]) -> dict[str, Any]:
    choice = {"text": holder["generated_text"], "finish_reason": details.get("finish_reason")}
    usage = {"completion_tokens": details.get("generated_tokens")}
    return {"choices": [choice], "usage": usage}


def _of_llama_cpp(holder: dict[str, Any]) -> dict[str, Any]:
    """Returns a response of llama.cpp; one whose prompt was cut to the context has not ended."""
    ended = None
    if holder.get("truncated") is not True:
        ended = STOPS_OF_LLAMA_CPP.get(str(holder.get("stop_type")))
    choice: dict[str, Any] = {"text": holder["content"], "finish_reason": ended}
    if holder.get("tokens"):
        choice["token_ids"] = holder["tokens"]
    usage = {
        "completion_tokens": holder["tokens_predicted"],
        "prompt_tokens": holder.get("tokens_evaluated"),
    }
    return {"model": holder.get("model"), "choices": [choice], "usage": usage}


def is_of_ollama(holder: dict[str, Any]) -> bool:
    """Whether an object is a response of Ollama, or a piece of one."""
    answer = holder.get("message", holder.get("response"))
    return isinstance(holder.get("done"), bool) and isinstance(answer, dict | str)


def is_ollama_lines(text: str) -> bool:
    """Whether a text has the pieces of a response of Ollama as lines."""
    return _PIECE_OF_OLLAMA.search(text.partition("\n")[0]) is not None and "\n{" in text


def join_ollama_stream(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns a response of Ollama as OpenAI's; it was cut unless its last piece is `done`."""
    last = pieces[-1]
    message: dict[str, Any] = {"role": "assistant", "content": "", "reasoning": ""}
    calls: list[Any] = []
    for piece in pieces:
        answer = piece.get("message")
        answer = answer if isinstance(answer, dict) else {**piece, "content": piece.get("response")}
        for key, name in {"content": "content", "thinking": "reasoning"}.items():
            text = answer.get(key)
            message[name] += text if isinstance(text, str) else ""
        listed = answer.get("tool_calls")
        calls += listed if isinstance(listed, list) else ()
    if calls:
        message["tool_calls"] = calls
    ended = last.get("done_reason") if last.get("done") is True else "cut"
    return {
        "model": last.get("model"),
        "choices": [{"message": message, "finish_reason": ended}],
        "usage": {"completion_tokens": last.get("eval_count")},
        OLLAMA: True,
    }


def with_ollama_messages(request: dict[str, Any]) -> dict[str, Any]:
    """Returns a request to Ollama's `/api/generate` as a chat, which its template makes of it."""
    prompt = request.get("prompt")
    if not isinstance(prompt, str) or request.get("raw") is True or "messages" in request:
        return request
    system = request.get("system")
    before = [{"role": "system", "content": system}] if isinstance(system, str) else []
    kept = {key: value for key, value in request.items() if key not in ("prompt", "system")}
    return {**kept, "messages": [*before, {"role": "user", "content": prompt}]}


def _of_ollama(holder: dict[str, Any]) -> dict[str, Any] | None:
    """Returns a request to Ollama under OpenAI's names; None for any other."""
    if not isinstance(holder.get("messages"), list) and not isinstance(holder.get("prompt"), str):
        return None
    return with_ollama_messages({**_renamed(holder["options"], OF_OLLAMA), **holder})


def text_pair(row: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Returns request and response of a row with a rendered prompt and its completion as text."""
    prompt = row.get("prompt")
    if not isinstance(prompt, str) or not _RENDERED.search(prompt):
        return None
    around = [row, *(value for value in row.values() if isinstance(value, dict))]
    request = {key: value for holder in reversed(around) for key, value in holder.items()}
    request.pop("messages", None)  # the prompt has them, rendered
    outputs = row.get("outputs")
    if isinstance(outputs, list) and all(_is_output(output) for output in outputs):
        return request, {"choices": outputs}  # vLLM's RequestOutput
    text = next((row[key] for key in COMPLETIONS if isinstance(row.get(key), str)), None)
    if text is None:
        return None
    ended = row.get("finish_reason", row.get("stop_reason"))
    if ended is None:
        counted = (take_count(request, name) for name in COUNTS)
        used = next((count for count in counted if count is not None), None)
        ended = end_by_limit(parse_number(request, "max_tokens"), used)
    choice = {"text": text, "finish_reason": ended}
    return request, {"choices": [choice], "usage": row.get("usage")}


def _is_output(output: Any) -> bool:
    return isinstance(output, dict) and isinstance(output.get("text"), str)


def _of_converse(holder: dict[str, Any]) -> dict[str, Any] | None:
    """Returns a request to Converse as OpenAI's, whose system message is one of the messages."""
    settings = holder.get(CONVERSE)
    system = holder.get("system")
    if not isinstance(settings, dict) and not _has_untyped_parts(holder["messages"]):
        return None
    message = [{"role": "system", "content": system}] if isinstance(system, list) else []
    return {
        **{key: value for key, value in holder.items() if key not in (CONVERSE, "system")},
        **_renamed(settings if isinstance(settings, dict) else {}, OF_CONVERSE),
        "messages": [*message, *holder["messages"]],
    }


def _renamed(parameters: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """Returns parameters under OpenAI's names."""
    return {names.get(key, key): value for key, value in parameters.items()}


def _has_untyped_parts(messages: list[Any]) -> bool:
    """Whether the last message's content is a list of parts whose key is their type."""
    content = messages[-1].get("content") if messages and isinstance(messages[-1], dict) else None
    parts = content if isinstance(content, list) else []
    return any(isinstance(part, dict) and part.keys() == {"text"} for part in parts)


def _of_sglang(holder: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    ended = about.get("finish_reason")
    choice: dict[str, Any] = {"text": holder["text"], "finish_reason": ended}
    if isinstance(ended, dict):
        choice["matched_stop"] = ended.get("matched")
    ids = holder.get("output_ids")
    if isinstance(ids, list) and len(ids) == about.get("completion_tokens"):
        choice["token_ids"] = ids
    return {"id": about.get("id"), "choices": [choice], "usage": about}
