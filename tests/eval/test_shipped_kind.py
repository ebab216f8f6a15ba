"""The shipped kind: the fastest that passes the gate, as measured, else by forecast."""

import pytest

from outrider.eval.results.parts import Estimate
from outrider.eval.results.report import Results
from outrider.eval.shipped_kind import shipped_kind
from tests.eval.sample_kinds import sample_choice
from tests.eval.sample_results import sample_results


def served(verdict: str, over_none: dict[str, tuple[float, float, float]]) -> Results:
    """Results with that verdict and ratios to no speculation at the main concurrency by mode."""
    results = sample_results()
    modes = {}
    for mode, one in results.served.items():
        value, low, high = over_none[mode]
        row = one.speed["1"].model_copy(
            update={"custom_over_none": Estimate(value=value, low=low, high=high)}
        )
        modes[mode] = one.model_copy(update={"speed": {**one.speed, "1": row}})
    judged = results.verdict.model_copy(update={"verdict": verdict})
    return results.model_copy(update={"served": modes, "verdict": judged})


def both(ratio: tuple[float, float, float]) -> dict[str, tuple[float, float, float]]:
    return {"eager": ratio, "compiled": ratio}


FAST, SLOW, WIDE = (2.4, 2.3, 2.5), (2.0, 1.9, 2.1), (2.1, 1.8, 2.6)


@pytest.mark.parametrize(
    ("eagle3", "mtp", "chosen", "words"),
    [
        # The forecast puts eagle3 first (sample_choice).
        (("ship", both(FAST)), ("ship", both(SLOW)), "eagle3", "measured to be faster"),
        (("ship", both(SLOW)), ("ship", both(FAST)), "mtp", "measured to be faster"),
        (("ship", both(SLOW)), ("ship", both(WIDE)), "eagle3", "by its forecast"),
        (
            ("ship", {"eager": SLOW, "compiled": FAST}),
            ("ship", {"eager": FAST, "compiled": SLOW}),
            "eagle3",
            "by its forecast",
        ),
        (("undecided", both(FAST)), ("ship", both(SLOW)), "mtp", "it alone passes the gate"),
        (("do not ship", both(FAST)), ("undecided", both(SLOW)), "mtp", "No kind passes"),
        (
            ("undecided", both(SLOW)),
            ("undecided", both(FAST)),
            "mtp",
            "verdict of both is `undecided`",
        ),
    ],
)
def test_the_fastest_that_passes_is_chosen_and_the_reason_says_why(
    eagle3, mtp, chosen, words
) -> None:
    choice = sample_choice()
    assert choice.finalists == ["eagle3", "mtp"]
    evaluated = {"eagle3": served(*eagle3), "mtp": served(*mtp)}
    for order in (["eagle3", "mtp"], ["mtp", "eagle3"]):
        kinds = shipped_kind(choice, {kind: evaluated[kind] for kind in order})
        assert kinds.chosen == chosen and words in kinds.reason
    assert set(kinds.served) == {"eagle3", "mtp"}


def test_the_only_kind_that_was_served_is_chosen() -> None:
    results = served("ship", both(WIDE))
    kinds = shipped_kind(sample_choice({"mtp": 0.8}), {"mtp": results})
    assert "only kind that was served" in kinds.reason
    assert kinds.served["mtp"].over_none["eager"]["1"].value == WIDE[0]
