"""Support and order chat: a bank's customers (banking77) and a café's (Taskmaster-4).

The customers' words come from the corpora. Replies are templates around them: the bank names the
topic of the question; the café repeats the order. Orders have one to four turns; earlier replies
are in the prompt without their reasoning.

    next(conversations(Path("corpus"), seed=0, count=1, part="train")).answer
"""

import itertools
import random
import re
from collections.abc import Iterator
from pathlib import Path

from outrider.recipes.nano_r1.tasks import (
    CAFE_SYSTEM,
    CONFIRMATION,
    bank_answer,
    confirmation_question,
    order_confirmation,
    wish_list,
)
from tools.nano_r1.conversations import Conversation, Part, corpus_rows, part_of

BANK_SYSTEM = "You are the help desk of a bank. Find the intent of the customer's message."
ORDER_SHARE = 0.5
LONGEST_MESSAGE = 130
LONGEST_CONFIRMATION = 40
ORDER_WORDS = re.compile(
    r"\b(latte|mocha|cappuccino|espresso|coffee|tea|americano|macchiato|chocolate|frappe"
    r"|flat white)s?\b",
    re.I,
)
# Words in messages that are neither a plain order nor a plain yes.
QUESTION_WORDS = re.compile(
    r"\b(what|which|menu|kinds?|curious|do you|are you|don't|any)\b", re.IGNORECASE
)
CHANGE_WORDS = re.compile(
    r"\b(add|want|can|could|would|with|see|have|need|but|no|not|change|like|what)\b|\?",
    re.IGNORECASE,
)


def conversations(
    corpus_dir: Path, seed: int, count: int | None, part: Part
) -> Iterator[Conversation]:
    """Yields `count` conversations (None: endless); each pass has new orders."""
    rng = random.Random(f"support {seed} {part}")
    return itertools.islice(
        _endless(bank_messages(corpus_dir, part), *cafe_turns(corpus_dir, part), rng), count
    )


def _endless(
    questions: dict[str, str], orders: list[str], yeses: list[str], rng: random.Random
) -> Iterator[Conversation]:
    rows = sorted(questions.items())
    while True:
        for question, intent in rng.sample(rows, len(rows)):
            if rng.random() < ORDER_SHARE:
                yield order(rng, orders, yeses)
            else:
                yield bank_reply(question, intent)


def bank_messages(corpus_dir: Path, part: Part) -> dict[str, str]:
    """Maps the part's bank messages to intents (lower case with underscores)."""
    rows = (
        (" ".join(row["text"].split()), row["category"])
        for row in corpus_rows(corpus_dir, "banking77_train.jsonl.gz")
    )
    return {
        text: intent.lower().strip("?")
        for text, intent in rows
        if len(text) <= LONGEST_MESSAGE and part_of(text) == part
    }


def cafe_turns(corpus_dir: Path, part: Part) -> tuple[list[str], list[str]]:
    """The part's distinct orders, and confirmations, which all parts share."""
    orders = set()
    yeses = set()
    for row in corpus_rows(corpus_dir, "taskmaster4_dialogues.jsonl.gz"):
        for turn in row["turns"]:
            text = " ".join(turn["text"].split())
            if turn["speaker"] != "user" or len(text) > LONGEST_MESSAGE:
                continue
            if CONFIRMATION.match(text):
                if len(text) <= LONGEST_CONFIRMATION and not CHANGE_WORDS.search(text):
                    yeses.add(text)
            elif (
                ORDER_WORDS.search(text)
                and not QUESTION_WORDS.search(text)
                and part_of(text) == part
            ):
                orders.add(text)
    return sorted(orders), sorted(yeses)


def bank_reply(question: str, intent: str) -> Conversation:
    topic = intent.replace("_", " ")
    reasoning = f'The customer writes: "{question}"\nThis is about: {topic}.\nIntent: {intent}'
    answer = bank_answer(intent)
    messages = [{"role": "system", "content": BANK_SYSTEM}, {"role": "user", "content": question}]
    return Conversation(
        work="support", messages=messages, reasoning=reasoning, answer=answer, route="support-bank"
    )


def order(rng: random.Random, orders: list[str], yeses: list[str]) -> Conversation:
    """An order of one to three messages; training uses the last reply."""
    wishes = rng.sample(orders, rng.choice([1, 1, 2, 2, 3]))
    messages = [{"role": "system", "content": CAFE_SYSTEM}]
    for number, wish in enumerate(wishes, 1):
        messages += [
            {"role": "user", "content": wish},
            {"role": "assistant", "content": confirmation_question(wishes[:number])},
        ]
    confirmed = rng.random() < 0.4
    said = f"The customer ordered {len(wishes)} times:\n{wish_list(wishes)}"
    if confirmed:
        yes = rng.choice(yeses)
        messages.append({"role": "user", "content": yes})
        reasoning = f'{said}\nThe last message is "{yes}", which confirms, so I send the order.'
        answer = order_confirmation(wishes)
    else:
        messages.pop()
        reasoning = f"{said}\nThe last message is an order, so I read the order back."
        answer = confirmation_question(wishes)
    return Conversation(
        work="support",
        messages=messages,
        reasoning=reasoning,
        answer=answer,
        route="support-orders",
    )
