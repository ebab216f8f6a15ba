"""The mixture of four tasks for training and measuring nano R1.

python -m tools.nano_r1.texts CORPUS_DIR   # samples, with token counts
"""

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean
from typing import get_args

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from tools.nano_r1 import math_problems, receipts, resumes, support
from tools.nano_r1.chat import build_tokenizer
from tools.nano_r1.conversations import Conversation, Part, Work

WORKS: dict[Work, Callable[[Path, int, int | None, Part], Iterator[Conversation]]] = {
    "resumes": resumes.conversations,
    "receipts": receipts.conversations,
    "support": support.conversations,
    "math": math_problems.conversations,
}
# Shares of the tokens in prompts and completions.
SHARES: dict[Work, float] = {"resumes": 0.30, "receipts": 0.25, "support": 0.25, "math": 0.20}
# Characters per token of each task with nano R1's BPE, so that the mixture needs no tokenizer.
CHARACTERS_A_TOKEN: dict[Work, float] = {
    "resumes": 3.39,
    "receipts": 2.25,
    "support": 3.63,
    "math": 2.46,
}
# Conversations of each task to train the tokenizer on; more hardly change its merges.
TOKENIZER_CONVERSATIONS = 3000


def estimated_tokens(conversation: Conversation) -> float:
    characters = sum(len(message["content"]) for message in conversation.messages) + len(
        conversation.completion
    )
    return characters / CHARACTERS_A_TOKEN[conversation.work]


def mixture(
    corpus_dir: Path, seed: int, part: Part, tokens: int | None = None
) -> Iterator[Conversation]:
    """Yields conversations of all tasks, about `tokens` tokens (None: endless).

    The next conversation is from the task furthest below its share, so the mixture stays even.
    """
    streams = {
        work: conversations(corpus_dir, seed, None, part) for work, conversations in WORKS.items()
    }
    tokens_of = dict.fromkeys(SHARES, 0.0)
    while tokens is None or sum(tokens_of.values()) < tokens:
        work = min(SHARES, key=lambda work: tokens_of[work] / SHARES[work])
        conversation = next(streams[work])
        tokens_of[work] += estimated_tokens(conversation)
        yield conversation


def tokenizer_for(corpus_dir: Path, seed: int) -> PreTrainedTokenizerFast:
    """Nano R1's tokenizer, trained on a sample of every task."""
    sample = itertools.chain.from_iterable(
        conversations(corpus_dir, seed, TOKENIZER_CONVERSATIONS, "train")
        for conversations in WORKS.values()
    )
    return build_tokenizer(
        "\n".join([*(m["content"] for m in c.messages), c.completion]) for c in sample
    )


def encode(conversation: Conversation, tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], int]:
    """(token_ids, completion_start): the rendered prompt, then the completion with eos."""
    prompt = tokenizer.apply_chat_template(
        conversation.messages, tokenize=False, add_generation_prompt=True
    )
    prompt_ids = tokenizer.encode(prompt, add_special_tokens=False)
    completion_ids = tokenizer.encode(conversation.completion, add_special_tokens=False)
    return [*prompt_ids, *completion_ids, tokenizer.eos_token_id], len(prompt_ids)


def main(corpus_dir: Path) -> None:
    tokenizer = tokenizer_for(corpus_dir, seed=0)
    for work, conversations in WORKS.items():
        sample = next(conversations(corpus_dir, 1, 1, "train"))
        prompt = tokenizer.apply_chat_template(
            sample.messages, tokenize=False, add_generation_prompt=True
        )
        print(f"=== {work}\n{prompt}{sample.completion}{tokenizer.eos_token}")
        for part in get_args(Part):
            rows = [encode(c, tokenizer) for c in conversations(corpus_dir, 1, 200, part)]
            prompts = mean(start for _, start in rows)
            completions = mean(len(ids) - start for ids, start in rows)
            longest = max(len(ids) for ids, _ in rows)
            print(
                f"--- {part}: prompt {prompts:.0f}, completion {completions:.0f}, "
                f"longest {longest} tokens (n=200)"
            )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m tools.nano_r1.texts CORPUS_DIR")
    main(Path(sys.argv[1]))
