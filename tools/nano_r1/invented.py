"""Invented words, for names of people, firms and streets.

There are too many to memorize, so a model that reads new names in every prompt has to learn to copy
them.

    word(random.Random(0))  # e.g. 'Tarovin'
"""

import random

ONSETS = [
    "b",
    "br",
    "d",
    "dr",
    "f",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "w",
    "z",
]
VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "ou"]
ENDINGS = ["n", "l", "r", "s", "m", "nd", "x", "k", "th", "rn", ""]


def word(rng: random.Random, syllables: int | None = None) -> str:
    """A capitalized word: about 10^5 have two syllables, 10^8 have three."""
    syllables = syllables or rng.choice([2, 2, 3])
    body = "".join(rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(syllables))
    return (body + rng.choice(ENDINGS)).capitalize()


def digits(rng: random.Random, text: str) -> str:
    """Replaces every digit of `text` with a random one; no leading zeros."""
    out = ""
    for index, character in enumerate(text):
        leads = index == 0 or not text[index - 1].isdigit()
        out += (
            rng.choice("123456789" if leads else "0123456789") if character.isdigit() else character
        )
    return out
