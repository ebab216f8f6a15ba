"""Requests and responses of engines' and clouds' own text APIs, as OpenAI's text completions.

- Llama's fields on Bedrock, which imported R1-Distill models have, too: `prompt`, `max_gen_len`;
  `generation`, `stop_reason`, `generation_token_count` (user guide, November 2026)
- SGLang's `/generate`: `text` or `input_ids`, `sampling_params`; `text`, `output_ids`, `meta_info`
  (0.5, managers/io_struct.py)
"""

from typing import Any


def native_request(holder: dict[str, Any]) -> dict[str, Any] | None:
    """Returns a request to SGLang's `/generate` as OpenAI's; None for any other."""
    sampling = holder.get("sampling_params")
    prompt = holder.get("input_ids", holder.get("text"))
    if not isinstance(sampling, dict) or not isinstance(prompt, str | list) or "rid" in holder:
        return None
    return {**sampling, "prompt": prompt, "model": holder.get("model")}


def native_response(holder: dict[str, Any]) -> dict[str, Any] | None:
    """Returns a response as OpenAI's; None if it is not one of these APIs'."""
    if isinstance(holder.get("generation"), str) and "stop_reason" in holder:
        choice = {"text": holder["generation"], "finish_reason": holder["stop_reason"]}
        count = holder.get("generation_token_count")
        return {
            "choices": [choice],
            "usage": {
                "completion_tokens": count,
                "prompt_tokens": holder.get("prompt_token_count"),
            },
        }
    about = holder.get("meta_info")
    if isinstance(about, dict) and isinstance(holder.get("text"), str):
        return _of_sglang(holder, about)
    return None


def _of_sglang(holder: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    ended = about.get("finish_reason")
    choice: dict[str, Any] = {"text": holder["text"], "finish_reason": ended}
    if isinstance(ended, dict):
        choice["matched_stop"] = ended.get("matched")
    ids = holder.get("output_ids")
    if isinstance(ids, list) and len(ids) == about.get("completion_tokens"):
        choice["token_ids"] = ids
    return {"id": about.get("id"), "choices": [choice], "usage": about}
