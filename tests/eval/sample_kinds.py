"""Two or three kinds of drafter, timed and replayed: synthetic, put together by the real code.

choice = sample_choice()                         # eagle3 before mtp
kinds = sample_kinds(sample_results())           # one of them served and shipped
"""

from collections.abc import Mapping

import numpy as np

from outrider.eval.bench.kind_steps import KindSteps
from outrider.eval.config import EvalConfig
from outrider.eval.prediction.kind_forecast import Candidate, forecast
from outrider.eval.results.kinds import KindChoice, KindFacts, Kinds
from outrider.eval.results.report import Results
from outrider.eval.shipped_kind import shipped_kind
from tests.eval.sample_results import DEPTH, EVALUATION, sample_replay

STEPS_MS = {
    "none": [10.0],
    "mtp": [13.0, 14.0, 15.0, 16.0],
    "eagle3": [12.0, 12.6, 13.2, 13.8],
    "p_eagle": [12.5],
}
"""Milliseconds of a step of one request, by number of drafts."""
NUMBERS = {"none": [0], "mtp": [1, 2, 3, 4], "eagle3": [1, 2, 3, 4], "p_eagle": [4]}
ACCEPTANCE = {"mtp": 0.8, "eagle3": 0.8, "p_eagle": 0.6}
TURNS = 6
FACTS = KindFacts(parameters=1_910_000, megabytes=3.8, training_minutes=4.2)


def sample_kind_steps(
    steps_ms: Mapping[str, list[float]] = STEPS_MS,
    seed: int = 0,
    own_noise: float = 0.03,
    sizes: tuple[int, ...] = (1, 4, 8),
) -> KindSteps:
    """Servers that took turns on a machine whose speed differs by 40 % from turn to turn.

    A step of B requests takes B^0.3 times as long as one of a single request. `own_noise` is the
    standard deviation of a server's own level in a turn.
    """
    random = np.random.default_rng(seed)
    turn = {size: np.exp(random.normal(0, 0.4, TURNS)) for size in sizes}
    timed: dict[str, dict[int, list[list[list[float | None]]]]] = {}
    for name, milliseconds in steps_ms.items():
        timed[name] = {}
        for size in sizes:
            timed[name][size] = []
            for machine in turn[size]:
                level = machine * np.exp(random.normal(0, own_noise)) * size**0.3 / 1000
                noise_RK = np.exp(random.normal(0, 0.05, (4, len(milliseconds))))
                timed[name][size].append((level * np.array(milliseconds) * noise_RK).tolist())
    return KindSteps(
        numbers={name: NUMBERS[name] for name in steps_ms},
        turns=timed,
        prompt_token_s=dict.fromkeys(steps_ms, 1e-5),
        shared=True,
    )


def sample_choice(
    acceptance: Mapping[str, float] = ACCEPTANCE,
    settings: EvalConfig = EVALUATION,
    by_batch_size: bool = False,
) -> KindChoice:
    """The forecast for these kinds."""
    steps = sample_kind_steps({name: STEPS_MS[name] for name in ("none", *acceptance)})
    candidates = {
        kind: Candidate(f"a drafter of kind {kind}", sample_replay(share), FACTS)
        for kind, share in acceptance.items()
    }
    assert max(map(max, steps.numbers.values())) == DEPTH
    return forecast(steps, candidates, settings, prompt_tokens=200, by_batch_size=by_batch_size)


def sample_kinds(results: Results) -> Kinds:
    """The choice where the results are those of the faster of two served kinds."""
    return shipped_kind(sample_choice(), {"eagle3": results, "mtp": results})
