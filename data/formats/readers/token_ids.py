"""Logged token ids or a tokenized data set, one exchange per row.

    {"prompt_token_ids": [0, 128803, ...], "completion_token_ids": [201, ...],
     "finish_reason": "stop", "temperature": 0.6}

The ids are used unchanged. Rows of vLLM's speculators (`input_ids`, `loss_mask`,
`metadata.finish_reason`, scripts/response_regeneration at commit 00003398) are read, too: the last
run of ones in the mask is the completion. So are rows of Ray Data LLM (`generated_tokens`, with the
sampling as vLLM prints it, 2.60).
"""

import re
from typing import Any

from outrider.data.exchange import Exchange, Record, Reject
from outrider.data.files.rows import FileSample
from outrider.data.formats.calls.finish_reasons import end_by_limit, finish_reason
from outrider.data.formats.calls.openai import reasoning_and_content
from outrider.data.formats.calls.sampling import NUMBERS, sampling_of
from outrider.data.formats.fields import first_value, take, take_ids, take_mapping, take_text
from outrider.data.formats.rows.row_fields import fields
from outrider.data.formats.wrappers import open_row

GENERATED = frozenset({"prompt_token_ids", "generated_tokens"})
"""Keys of a row of Ray Data LLM (llm/_internal/batch/stages/vllm_engine_stage.py)."""

MASKED = frozenset({"input_ids", "loss_mask"})
"""Keys of a tokenized sequence with a mask of what is trained on."""

PAIR_OF_IDS = frozenset({"prompt_token_ids", "completion_token_ids"})

_NUMBER = re.compile(rf"\b({'|'.join(NUMBERS)}|max_tokens)=(-?\d[\d.e-]*)")
_FORCES = re.compile(r"\bstructured_outputs=(?!None)|\bguided_decoding=(?!None)")
"""Parameters as vLLM prints `SamplingParams`."""


def recognizes(sample: FileSample) -> bool:
    return any(
        any(row.keys() >= keys for keys in (PAIR_OF_IDS, GENERATED, MASKED)) for row in sample.rows
    )


def parse(record: Record) -> list[Exchange | Reject]:
    row = open_row(record.payload)
    if row.keys() >= MASKED:
        row = _split_by_mask(row)
    elif row.keys() >= GENERATED:
        row = _of_ray(row)
    prompt_ids, completion_ids = (
        take_ids(row, f"{part}_token_ids", "row") for part in ("prompt", "completion")
    )
    if prompt_ids is None or completion_ids is None:
        raise Reject(
            "incomplete_pair", f"no {'prompt' if prompt_ids is None else 'completion'}_token_ids"
        )
    # Texts logged with the ids are used only to compare retokenized text with the ids.
    reasoning, content = reasoning_and_content(row)
    ended = first_value(take(row, "finish_reason", str, "row"), "stop")
    return [
        Exchange(
            record.place,
            prompt_token_ids=prompt_ids,
            completion_token_ids=completion_ids,
            reasoning=reasoning,
            content=content,
            finish_reason=finish_reason(ended),
            stop_reason=take(row, "stop_reason", (int, str), "row"),
            model=take_text(row, "model", "row"),
            **sampling_of(row, "row"),
            **fields(row),
        )
    ]


def _of_ray(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row of Ray Data LLM under this format's names; it has no finish reason."""
    printed = take_text(row, "params", "row") or ""
    sampling = dict(_NUMBER.findall(printed))
    ids = take_ids(row, "generated_tokens", "row") or []
    limit = float(sampling.pop("max_tokens", "inf"))
    if _FORCES.search(printed):
        # Which tokens were allowed is not in the row.
        sampling["structured_outputs"] = "as printed in params"
    return {
        **sampling,
        "prompt_token_ids": row["prompt_token_ids"],
        "completion_token_ids": ids,
        "content": row.get("generated_text"),
        "finish_reason": finish_reason(end_by_limit(limit, len(ids))),
        "id": row.get("request_id"),
    }


def _split_by_mask(row: dict[str, Any]) -> dict[str, Any]:
    """Returns a row with the ids before and in the mask's last run of ones."""
    ids, mask = (take_ids(row, key, "row") or [] for key in ("input_ids", "loss_mask"))
    if not ids or len(ids) != len(mask) or mask[-1] != 1 or not set(mask) <= {0, 1}:
        raise Reject("incomplete_pair", "loss_mask does not end with the response")
    prompt_length = len(mask) - mask[::-1].index(0) if 0 in mask else 0
    about = take_mapping(row, "metadata", "row")
    return {
        **take_mapping(about, "sampling_params", "metadata"),
        "prompt_token_ids": ids[:prompt_length],
        "completion_token_ids": ids[prompt_length:],
        "finish_reason": about.get("finish_reason"),
        "id": row.get("id"),
    }
