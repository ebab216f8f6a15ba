"""Two or three kinds of drafter, timed and replayed: synthetic, put together by the real code.

choice = sample_choice()                         # eagle3 before mtp
kinds = sample_kinds(sample_results())           # one of them served and shipped
"""

from collections.abc import Mapping

import numpy as np

from outrider.eval.bench.step_times import StepTimes
from outrider.eval.choose_kind import choice_of
from outrider.eval.config import EvalConfig
from outrider.eval.results.choice import KindChoice, KindFacts, Kinds
from outrider.eval.results.report import Results
from outrider.eval.shipped_kind import shipped_kind
from tests.eval.sample_results import EVALUATION, sample_replay

STEPS_MS = {
    "mtp": [13.0, 14.0, 15.0, 16.0],
    "eagle3": [12.0, 12.6, 13.2, 13.8],
    "p_eagle": [12.5],
}
"""Milliseconds of a step of one request, by number of drafts."""
PLAIN_MS = 10.0
NUMBERS = {"mtp": [1, 2, 3, 4], "eagle3": [1, 2, 3, 4], "p_eagle": [4]}
ACCEPTANCE = {"mtp": 0.8, "eagle3": 0.8, "p_eagle": 0.6}
ROUNDS = 24
FACTS = KindFacts(parameters=1_910_000, training_minutes=4.2)


def sample_step_times(
    kinds: Mapping[str, object] = STEPS_MS, sizes: tuple[int, ...] = (1, 4, 8)
) -> dict[str, StepTimes]:
    """Kinds timed one after another on a machine whose speed differs by 40 % between them.

    A step of B requests takes B^0.3 times as long as one of a single request.
    """
    random, found = np.random.default_rng(0), {}
    for kind in kinds:
        machine = np.exp(random.normal(0, 0.4))
        rounds = {}
        for size in sizes:
            noise_RK = np.exp(random.normal(0, 0.03, (ROUNDS, len(STEPS_MS[kind]))))
            rounds[size] = (
                machine * size**0.3 / 1000 * np.array(STEPS_MS[kind]) * noise_RK
            ).tolist()
        plain_s = {size: machine * size**0.3 * PLAIN_MS / 1000 for size in sizes}
        found[kind] = StepTimes(numbers=NUMBERS[kind], plain_s=plain_s, rounds=rounds)
    return found


def sample_choice(
    acceptance: Mapping[str, float] = ACCEPTANCE, settings: EvalConfig = EVALUATION
) -> KindChoice:
    """The forecast for these kinds."""
    return choice_of(
        {kind: sample_replay(share) for kind, share in acceptance.items()},
        sample_step_times(acceptance),
        settings,
        dict.fromkeys(acceptance, FACTS),
    )


def sample_kinds(results: Results) -> Kinds:
    """The choice where the results are those of the faster of two served kinds."""
    return shipped_kind(sample_choice(), {"eagle3": results, "mtp": results})
