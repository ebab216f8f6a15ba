"""Three kinds of drafter and n-gram lookup, timed and replayed: synthetic, ranked by the real code.

kinds = sample_kinds()            # eagle3 first
"""

from outrider.eval.choose_kind import ranked
from outrider.eval.results.sections import KindSpeed
from tests.eval.sample_results import EVALUATION, sample_replay

STEPS_MS = {
    "mtp": {1: 13.0, 2: 14.0, 3: 15.0, 4: 16.0},
    "eagle3": {1: 12.0, 2: 12.6, 3: 13.2, 4: 13.8},
    "p_eagle": {4: 12.5},
    "ngram": {1: 11.0, 2: 11.1, 3: 11.2, 4: 11.3},
}
"""Milliseconds of a step of one request, by number of drafts."""
ACCEPTANCE = {"mtp": 0.8, "eagle3": 0.8, "p_eagle": 0.6, "ngram": 0.4}
FACTS = {
    kind: {"parameters": 1_910_000, "training_minutes": 4.2} for kind in STEPS_MS if kind != "ngram"
}


def sample_steps() -> dict[str, dict[int, dict[int, float]]]:
    """Kind -> batch size -> drafts -> seconds."""
    return {
        kind: {EVALUATION.main: {k: ms / 1000 for k, ms in row.items()}}
        for kind, row in STEPS_MS.items()
    }


def sample_kinds(ngram: float = ACCEPTANCE["ngram"]) -> list[KindSpeed]:
    """The choice among these kinds, where lookup accepts a draft with this probability."""
    acceptance = ACCEPTANCE | {"ngram": ngram}
    replays = {kind: sample_replay(share) for kind, share in acceptance.items()}
    steps = {kind: sizes[EVALUATION.main] for kind, sizes in sample_steps().items()}
    return ranked(replays, steps, EVALUATION.main, FACTS)
