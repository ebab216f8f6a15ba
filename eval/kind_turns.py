"""Which engines and numbers of drafts the choice of the kind times, for the run and for its price.

    turns = kind_turns(speculators, lengths, drafts, engine)
    turns.numbers          # {"mtp": [1, 2, 3], "suffix": [2, 4, 8, 24], "none": [0]}
    turns.timed_as         # {"mtp": "mtp", "base": "mtp", "ngram": "suffix", ...}

Speculators are named by their kind, or `base` and `none` (REFERENCES).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from outrider.eval.config import LOOKUP_NUMBERS, MIN_GAIN, EvalConfig
from outrider.serving.config import EngineConfig
from outrider.serving.runner import runner_of
from outrider.serving.speculator import Speculator

REFERENCES = ("base", "none")
"""Names of the speculator in use and of no speculation, which are timed but cannot be chosen."""


class KindTurns(NamedTuple):
    """What is timed."""

    timed_as: dict[str, str]
    """The kind whose step times hold for each kind; most have their own."""
    numbers: dict[str, list[int]]
    """Numbers of drafts of each kind that is timed, ascending."""

    @property
    def turns(self) -> list[tuple[str, int]]:
        """Each kind with each of its numbers of drafts."""
        return [(kind, number) for kind, row in self.numbers.items() for number in row]


def kind_turns(
    speculators: Mapping[str, Speculator],
    lengths: Mapping[str, Sequence[float]],
    drafts: Mapping[str, Sequence[int]],
    engine: EngineConfig,
) -> KindTurns:
    """Returns what is timed of the kinds, of base and without speculation.

    `lengths` holds the acceptance lengths of each for 1, 2, ... drafts, and `drafts` the numbers of
    drafts that may be measured.
    """
    timed_as = _timed_as(speculators, lengths, engine)
    numbers: dict[str, set[int]] = {}
    for kind, speculator in speculators.items():
        positive = [number for number in drafts[kind] if number]
        if not speculator.speculates:
            useful = [0]
        elif speculator.drafter_kind.fixed_k:
            # An engine whose k is fixed would have to be started once per number.
            useful = [max(positive)]
        else:
            useful = useful_numbers(positive, lengths[kind])
        numbers.setdefault(timed_as[kind], set()).update(useful)
    return KindTurns(timed_as, {kind: sorted(useful) for kind, useful in numbers.items()})


def draft_numbers(speculator: Speculator, settings: EvalConfig, depth: int) -> list[int]:
    """Numbers of drafts per step that may be measured, ascending."""
    numbers = set()
    if settings.k != "auto":
        numbers = {settings.k, settings.current_k or settings.k}
    if _is_lookup(speculator):
        # A lookup has no trained depth, so today's number may be larger.
        today = {settings.current_k} if settings.current_k else set()
        return sorted(numbers.union(LOOKUP_NUMBERS, today))
    if settings.k == "auto":
        numbers.update(range(1, depth + 1))
    return sorted(numbers)


def useful_numbers(numbers: Sequence[int], lengths: Sequence[float]) -> list[int]:
    """The numbers of drafts that can be a kind's best k, ascending.

    `lengths` holds the acceptance length for k = 1, 2, ... A step with more drafts takes no less
    time, so a number that hardly accepts more than a smaller one cannot be faster.
    """
    useful: list[int] = []
    for number in sorted(numbers):
        if not useful or lengths[number - 1] > (1 + MIN_GAIN) * lengths[useful[-1] - 1]:
            useful.append(number)
    return useful


def _timed_as(
    speculators: Mapping[str, Speculator],
    lengths: Mapping[str, Sequence[float]],
    engine: EngineConfig,
) -> dict[str, str]:
    """The kind whose step times hold for each kind.

    Swapped weights of one shape take the same time per step, and lookups of one model runner run no
    model (lookups.py), so of these only the one with the longest accepted drafts is timed.
    """
    timed_as = {kind: kind for kind in speculators}
    lookups = {kind: one for kind, one in speculators.items() if _is_lookup(one)}
    by_length = sorted(lookups, key=lambda kind: -max(lengths[kind]))
    longest: dict[str, str] = {}
    for kind in by_length:
        timed_as[kind] = longest.setdefault(runner_of(lookups[kind].drafter_kind, engine), kind)
    if engine.changes_drafters:
        base = speculators["base"]
        shapes = [kind for kind in speculators if kind not in REFERENCES]
        timed_as["base"] = next(
            (kind for kind in shapes if speculators[kind].swaps_with(base)), timed_as["base"]
        )
    return timed_as


def _is_lookup(speculator: Speculator) -> bool:
    return speculator.speculates and not speculator.drafter_kind.has_weights
