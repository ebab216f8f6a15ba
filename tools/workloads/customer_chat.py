"""Customer chat: orders at coffee shops, in the customers' words (Taskmaster-4).

    sessions(Path("corpus"))[0].turns

A session is a dialogue of at least two messages. Its answers in the corpus are not used: the target
writes them. Each of `SHOPS` shops has a menu, prices and rules, a system prompt in its wording, and
facts in its layout.
"""

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.nano_r1 import invented
from tools.nano_r1.conversations import corpus_rows
from tools.nano_r1.resumes import CITIES
from tools.workloads.sessions import Message, Session, Turn, until

SHOPS = 48
LONG = 3
"""Messages of the dialogues that are all used; the corpus has 200, and 2,785 of two messages."""

DRINKS = {
    "Latte": 3.9,
    "Cappuccino": 3.7,
    "Mocha": 4.3,
    "Macchiato": 3.6,
    "Espresso": 2.4,
    "Americano": 2.9,
    "Chai Latte": 4.1,
    "Flat White": 3.8,
    "Hot Chocolate": 3.5,
}
SYRUPS = ["vanilla", "hazelnut", "caramel", "cinnamon", "maple", "coconut"]
KINDS = ["Coffee", "Espresso Bar", "Roasters", "Coffee House", "Café"]
RULES = [
    "Decaf costs nothing extra.",
    "Oat milk and soy milk cost 0.60 extra.",
    "Orders are ready in five minutes.",
    "We take cards only.",
    "A second drink is at half price before ten.",
    "Large cups cost 0.80 more.",
    "Guests with their own cup pay 0.30 less.",
    "We close at six.",
]
INSTRUCTIONS = [
    "You answer the guests of {name}, a coffee shop in {city}. Be brief and friendly.",
    "You take orders for {name} in {city}. Repeat the order with its price and ask whether it is "
    "right.",
    "You are the ordering assistant of {name}. Confirm what the guest ordered in one or two "
    "sentences.",
    "{name}, {city}: reply to each message of a guest in at most three sentences.",
    "As the barista of {name}, you write to a guest who orders by phone. Say what the order is "
    "now, what it costs, and when it is ready.",
    "Help the guest of {name} in {city} to order. If something is not on the menu, offer "
    "something that is.",
]


def as_list(drinks: dict[str, str], syrups: list[str]) -> str:
    menu = "\n".join(f"- {drink}: {price}" for drink, price in drinks.items())
    return f"Menu:\n{menu}\nSyrups: {', '.join(syrups)}"


def as_sentences(drinks: dict[str, str], syrups: list[str]) -> str:
    menu = ", ".join(f"{drink} ({price})" for drink, price in drinks.items())
    return f"We sell {menu}. Our syrups are {', '.join(syrups)}."


def as_table(drinks: dict[str, str], syrups: list[str]) -> str:
    rows = [f"| {drink} | {price} |" for drink, price in drinks.items()]
    rows += [f"| {syrup} syrup | 0.50 |" for syrup in syrups]
    return "\n".join(["| item | price |", "|---|---|", *rows])


def as_json(drinks: dict[str, str], syrups: list[str]) -> str:
    return json.dumps({"menu": drinks, "syrups": syrups})


LAYOUTS: list[Callable[[dict[str, str], list[str]], str]] = [
    as_list,
    as_sentences,
    as_table,
    as_json,
]


def system_prompt(rng: random.Random) -> str:
    """The system prompt of an invented shop."""
    name = f"{invented.word(rng)} {rng.choice(KINDS)}"
    drinks = {
        drink: f"{DRINKS[drink] + rng.randint(-4, 8) / 10:.2f}"
        for drink in rng.sample(sorted(DRINKS), rng.randint(5, 7))
    }
    syrups = rng.sample(SYRUPS, rng.randint(3, 4))
    instruction = rng.choice(INSTRUCTIONS).format(name=name, city=rng.choice(CITIES))
    facts = rng.choice(LAYOUTS)(drinks, syrups)
    rules = " ".join(rng.sample(RULES, 2))
    return "\n\n".join([instruction, facts, rules])


def dialogues(corpus: Path) -> Iterator[list[str]]:
    """Customers' messages of dialogues of at least two, each with another first message."""
    openings = set()
    for row in corpus_rows(corpus, "taskmaster4_dialogues.jsonl.gz"):
        messages = [
            " ".join(turn["text"].split()) for turn in row["turns"] if turn["speaker"] == "user"
        ]
        # Equal first messages would be near-duplicates, which the split leaves out.
        opening = re.sub(r"\W+", " ", messages[0]).strip().lower()
        if len(messages) >= 2 and opening not in openings:
            openings.add(opening)
            yield messages


def sessions(corpus: Path, responses: int = 1350) -> list[Session]:
    """All long dialogues, and as many of two messages as `responses` takes, in random order."""
    rng = random.Random("customer chat")
    shops = [system_prompt(rng) for _ in range(SHOPS)]
    shuffled = list(dialogues(corpus))
    rng.shuffle(shuffled)
    shuffled.sort(key=lambda messages: len(messages) < LONG)  # stable: the long ones first
    customers = (
        _session(f"guest-{number:04d}", rng.choice(shops), messages)
        for number, messages in enumerate(shuffled)
    )
    chosen = until(customers, responses)
    rng.shuffle(chosen)
    return chosen


def _session(user: str, system: str, messages: list[str]) -> Session:
    first = Turn((Message("system", system), Message("user", messages[0])))
    later = [Turn((Message("user", message),)) for message in messages[1:]]
    return Session(user, (first, *later))
