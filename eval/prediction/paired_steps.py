"""Step times of several servers that took turns, so that the machine's speed cancels.

    fits = fit_paired({"none": {1: turns}, "mine": {1: turns}}, samples=1000, seed=0)
    fits["mine"].step_s[1]          # seconds of a step of 1 request, by number of drafts

Two servers that were timed one after the other differ by whatever the machine did meanwhile.
Servers that take turns meet the same slow minutes. So the log times of a turn are the sum of the
turn's effect, which all servers share, the server's own level, and noise:

    level of server v in turn t:    l_vt = turn_t + level_v + e_vt

`fit_steps` fits each server by itself, and its level follows the turns that this server happened to
have most rounds in. Here levels are means over turns of the distance to the mean of all servers.
Their error is that of e, with one variance for all servers and batch sizes (two to eight turns of a
kind estimate it together), and Student's t.

Shapes: T turns, R rounds of a turn, K numbers of drafts, V servers, S resamples.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from outrider.eval.prediction.step_fit import Array, StepFit, fit_steps

Turns = Sequence[Array]
"""The rounds [R, K] of each turn in seconds; a missing time is NaN."""


def fit_paired(
    timed: Mapping[str, Mapping[int, Turns]], samples: int, seed: int
) -> dict[str, StepFit]:
    """The fit of each server by batch size; turn t of all servers is the same time.

    Servers may differ in their numbers of drafts. A turn that a server has no time in tells nothing
    of levels.
    """
    fits = {
        name: fit_steps(
            {size: np.concatenate(turns) for size, turns in own.items()},
            samples,
            seed,
        )
        for name, own in timed.items()
    }
    names, random = list(timed), np.random.default_rng(seed)
    sizes = sorted(timed[names[0]])
    apart = {
        size: _apart({name: timed[name][size] for name in names}, fits, size) for size in sizes
    }
    squares = sum(
        float(((e_VT - e_VT.mean(axis=1)[:, None]) ** 2).sum()) for e_VT in apart.values()
    )
    degrees = sum(max(e_VT.shape[1] - 1, 0) * (len(names) - 1) for e_VT in apart.values())
    variance = squares / degrees if degrees else 0.0
    moved: dict[str, StepFit] = {name: StepFit({}, {}) for name in names}
    for size in sizes:
        turns = apart[size].shape[1]
        share = (1 - 1 / len(names)) / turns if turns else 0.0
        for name, e_T in zip(names, apart[size], strict=True):
            shift = float(e_T.mean()) if turns else 0.0
            drawn_S = shift + np.sqrt(variance * share) * random.standard_t(
                max(degrees, 1), samples
            )
            own = fits[name]
            moved[name].step_s[size] = (np.array(own.step_s[size]) * np.exp(shift)).tolist()
            moved[name].draws_S[size] = own.draws_S[size] * np.exp(drawn_S)[:, None]
    return moved


def _apart(turns: Mapping[str, Turns], fits: Mapping[str, StepFit], size: int) -> Array:
    """[V, T] level of each server in each turn, relative to its fit and to the mean of all servers.

    Turns in which a server has no time are left out.
    """
    levels_VT = np.array(
        [[_level(rounds, fits[name].step_s[size]) for rounds in own] for name, own in turns.items()]
    )
    whole_VT = levels_VT[:, np.isfinite(levels_VT).all(axis=0)]
    found: Array = whole_VT - whole_VT.mean(axis=0, keepdims=True)
    return found


def _level(rounds_RK: Array, step_K: Sequence[float]) -> float:
    """Median log distance of a turn's times from the fit; NaN without times."""
    distance_RK = np.log(rounds_RK) - np.log(np.asarray(step_K))
    timed = distance_RK[np.isfinite(distance_RK)]
    return float(np.median(timed)) if len(timed) else float("nan")
