"""Which of the served kinds is shipped: the fastest that passes the gate.

    kinds = shipped_kind(choice, {"mine": results, "theirs": other})
    kinds.chosen, kinds.reason

Each kind was evaluated against base and no speculation in its own servers, minutes apart from the
others, so tokens/s do not compare, but ratios to no speculation do. A kind is shown to be faster
where the interval of its ratio lies above the other's in every engine mode, at the main
concurrency. Where the intervals overlap nothing is decided by the measurement, and the kind with
the higher forecast is taken: the forecast is from servers that took turns, on the validation part.
"""

from collections.abc import Mapping

from outrider.eval.config import SHIP, UNDECIDED
from outrider.eval.results.choice import KindChoice, Kinds, KindServed
from outrider.eval.results.parts import Estimate
from outrider.eval.results.report import Results

RANKS = {SHIP: 0, UNDECIDED: 1}
"""Order of verdicts; any other is last."""


def shipped_kind(choice: KindChoice, evaluated: Mapping[str, Results]) -> Kinds:
    """The chosen kind among those that were evaluated, and the reason."""
    served = {kind: _served(results) for kind, results in evaluated.items()}
    best = min(RANKS.get(each.verdict, len(RANKS)) for each in served.values())
    level = [
        each.kind
        for each in choice.kinds
        if each.kind in served and RANKS.get(served[each.kind].verdict, len(RANKS)) == best
    ]
    chosen, reason = level[0], _alone(level[0], served)
    for other in level[1:]:
        main = str(evaluated[chosen].main_concurrency)
        chosen, reason = _better(chosen, other, choice, served, main)
    return Kinds(choice=choice, served=served, chosen=chosen, reason=reason)


def _alone(kind: str, served: Mapping[str, KindServed]) -> str:
    """Why the only kind with the best verdict is taken."""
    verdict = served[kind].verdict
    others = [f"{name} ({each.verdict})" for name, each in served.items() if name != kind]
    if not others:
        return f"{kind} is the only kind that was served; its verdict is `{verdict}`."
    if verdict == SHIP:
        return f"{kind} is shipped because it alone passes the gate; not {', '.join(others)}."
    return f"No kind passes the gate; {kind} comes nearest, with `{verdict}`: {', '.join(others)}."


def _better(
    first: str,
    second: str,
    choice: KindChoice,
    served: Mapping[str, KindServed],
    main: str,
) -> tuple[str, str]:
    """The better of two kinds with the same verdict, `first` having the higher forecast."""
    ratios = {kind: served[kind].over_none for kind in (first, second)}
    found = {
        kind: " and ".join(f"{_interval(row[main])} ({mode})" for mode, row in ratios[kind].items())
        for kind in ratios
    }
    verdict = served[first].verdict
    passed = "Both pass the gate" if verdict == SHIP else f"The verdict of both is `{verdict}`"
    measured = (
        f"Served at concurrency {main}, {first} is {found[first]} times as fast as no speculation,"
        f" {second} {found[second]}"
    )
    for one, other in ((first, second), (second, first)):
        slower = ratios[other]
        if all(row[main].low > slower[mode][main].high for mode, row in ratios[one].items()):
            return one, f"{one} is chosen: it is measured to be faster. {measured}. {passed}."
    speeds = [choice.of(kind).tokens_per_s(main) for kind in (first, second)]
    return first, (
        f"{first} is chosen by its forecast, {speeds[0]:.0f} tokens/s against {speeds[1]:.0f} of"
        f" {second}. {measured}: the intervals overlap. {passed}."
    )


def _served(results: Results) -> KindServed:
    modes = results.served.items()
    return KindServed(
        verdict=results.verdict.verdict,
        over_none={
            mode: {size: row.custom_over_none for size, row in one.speed.items()}
            for mode, one in modes
        },
    )


def _interval(ratio: Estimate) -> str:
    return f"{ratio.value:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"
