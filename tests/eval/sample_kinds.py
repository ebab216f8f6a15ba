"""Three kinds of drafter, timed and replayed: synthetic, put together by the real code.

choice = sample_choice()            # eagle3 before mtp
"""

from outrider.eval.choose_kind import ranked, speed_of
from outrider.eval.results.choice import KindChoice
from tests.eval.sample_results import EVALUATION, sample_replay

STEPS_MS = {
    "mtp": {1: 13.0, 2: 14.0, 3: 15.0, 4: 16.0},
    "eagle3": {1: 12.0, 2: 12.6, 3: 13.2, 4: 13.8},
    "p_eagle": {4: 12.5},
}
"""Milliseconds of a step of one request, by number of drafts."""
ACCEPTANCE = {"mtp": 0.8, "eagle3": 0.8, "p_eagle": 0.6}
FACTS = {"parameters": 1_910_000, "training_minutes": 4.2}


def sample_steps() -> dict[str, dict[int, dict[int, float]]]:
    """Kind -> batch size -> drafts -> seconds; 8 requests take 8^0.3 times as long as one."""
    return {
        kind: {
            size: {k: size**0.3 * ms / 1000 for k, ms in row.items()}
            for size in EVALUATION.concurrency
        }
        for kind, row in STEPS_MS.items()
    }


def sample_choice() -> KindChoice:
    """The choice among these kinds."""
    steps = sample_steps()
    return ranked(
        [speed_of(kind, sample_replay(ACCEPTANCE[kind]), steps[kind], 1, FACTS) for kind in steps],
        main=1,
    )
