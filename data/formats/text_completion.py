"""Text completions (/v1/completions): a prompt without a template and its completion.

    {"request": {"prompt": "<｜User｜>Hi<｜Assistant｜><think>\\n"},
     "response": {"choices": [{"text": "...", "finish_reason": "stop"}]}}

The engine's tokenizer adds its begin token to the prompt unless the request has
`add_special_tokens: false`. A request may have several prompts; its choices follow their order, `n`
for each.
"""

from typing import Any

from outrider.data.exchange import Reject
from outrider.data.formats.fields import first, take, take_ids
from outrider.data.formats.rows import kind_of

Prompt = str | list[int]


def prompts_of(request: dict[str, Any], choices: int) -> list[Prompt]:
    """The prompt of each choice; empty where the request has no `prompt`."""
    prompt = request.get("prompt")
    if prompt is None:
        return []
    several = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)
    prompts = prompt if isinstance(prompt, list) and several else [prompt]
    for one in prompts:
        if isinstance(one, list):
            take_ids({"prompt": one}, "prompt", "request")
        elif take({"prompt": one}, "prompt", str, "request") is None:
            raise Reject("wrong_type", f"request.prompt holds {kind_of(one)}")
    if choices % len(prompts):
        raise Reject(
            "prompt_not_messages",
            f"{len(prompts)} prompts with {choices} choices: which belong together is not logged",
        )
    each = choices // len(prompts)
    return [prompts[choice // each] for choice in range(choices)]


def completed(choice: dict[str, Any], prompt: Prompt, request: dict[str, Any]) -> dict[str, Any]:
    """Prompt and completion of a choice as fields of `Exchange`; `logprobs` are not needed."""
    text, token_ids = take(choice, "text", str, "choice"), take_ids(choice, "token_ids", "choice")
    if not text and token_ids is None:
        raise Reject("empty_response")
    if request.get("suffix"):
        raise Reject(
            "not_text", "request.suffix: how the engine puts it into the prompt is not logged"
        )
    if request.get("echo") and text is not None:
        if not isinstance(prompt, str) or not text.startswith(prompt):
            raise Reject(
                "not_text", "request.echo: the text does not begin with the prompt that it repeats"
            )
        text = text.removeprefix(prompt)
    as_text = isinstance(prompt, str)
    return {
        "prompt_text": prompt if as_text else None,
        "prompt_is_raw": as_text and request.get("add_special_tokens") is not False,
        "prompt_token_ids": first(
            take_ids(choice, "prompt_token_ids", "choice"), None if as_text else prompt
        ),
        "completion_token_ids": token_ids,
        "completion_is_raw": True,
        "content": text,
    }
