"""Which held-out prompts an evaluation sends, and the customer's sampling.

sampling = customers_sampling(heldout)
verification_prompts, timed_prompts = evaluation_prompts(heldout, evaluation, serving)
"""

import collections
import random
from dataclasses import dataclass
from typing import Any

from outrider.common.errors import OutriderError
from outrider.eval.config import SEED, EvalConfig
from outrider.serving.client import Sampling
from outrider.serving.config import ServingConfig


@dataclass(frozen=True)
class Prompt:
    """A held-out request."""

    sequence_id: str
    session: str
    user: str
    token_ids: list[int]
    text: str


def customers_sampling(heldout: Any) -> Sampling:
    """The most frequent sampling parameters of the held-out requests."""
    counts = collections.Counter(
        Sampling(round(float(temperature), 4), round(float(top_p), 4), top_k)
        for temperature, top_p, top_k in zip(
            heldout["temperature"], heldout["top_p"], heldout["top_k"], strict=True
        )
    )
    return counts.most_common(1)[0][0]


def prompt_room(evaluation: EvalConfig, serving: ServingConfig) -> int:
    """Tokens of the longest prompt that is sent: the longest response must fit behind it."""
    longest = max(evaluation.verification_max_tokens, evaluation.max_tokens)
    return serving.engine.max_model_len - longest - 1


def unsent_text(unsent: int, prompts: int) -> str:
    """Held-out prompts that are too long to be sent, in words; empty where all are sent."""
    return (
        f"serving.engine.max_model_len: of {prompts:,} held-out prompts {unsent:,} are not sent,"
        " for want of room for a response; raise it, or lower eval.max_tokens and"
        " eval.verification_max_tokens"
        if unsent
        else ""
    )


def evaluation_prompts(
    heldout: Any, evaluation: EvalConfig, serving: ServingConfig
) -> tuple[list[Prompt], list[Prompt]]:
    """Prompts of the verification pass, and of the timed blocks, in a drawn order.

    The two do not overlap, unless there are fewer than twice `eval.verification_requests` prompts:
    then all of them are timed.
    """
    room = prompt_room(evaluation, serving)
    order = [*range(len(heldout))]
    random.Random(SEED).shuffle(order)
    prompts = [
        Prompt(
            row["sequence_id"],
            row["session"],
            row["user"],
            list(row["token_ids"][: row["completion_start"]]),
            row["prompt_text"],
        )
        for row in (heldout[index] for index in order)
        if row["completion_start"] <= room
    ]
    if not prompts:
        raise OutriderError(
            "evaluate: no held-out prompt leaves room for eval.verification_max_tokens = "
            f"{evaluation.verification_max_tokens} in serving.engine.max_model_len = "
            f"{serving.engine.max_model_len}; lower the one or raise the other"
        )
    wanted = evaluation.verification_requests
    timed = prompts if len(prompts) < 2 * wanted else prompts[wanted:]
    return prompts[:wanted], timed
