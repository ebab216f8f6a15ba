"""Canary against stable on live requests, free of the hour's drift and of unequal load.

    found = compare(log_speed_N, canary_N, cells_N, covariates_NP, sessions_N)
    found.bounds(alpha_low=0.05, alpha_high=0.03)      # of exp(mean difference of the logs)

A regression of a request's logarithm on whether the canary served it. Its share rises step by step
while speed drifts over the hour, so that means over all requests would compare different hours.
Requests are therefore compared within cells (a stretch of time and a range of load), and a cell
without both counts for nothing. Covariates take out what also differs within a cell: above all the
load, since a canary with 5 % of the requests has nearly empty batches and would look fast.

Requests of a session are alike. So the standard error is the jackknife's over sessions: the
regression without each session, exactly. The degrees of freedom are Welch's and Satterthwaite's
from the leverage of each session and the correlation within sessions, and the bounds are those of
common/anytime.py, valid at all looks. Requests of a session that are still to come only help: a sum
of positively correlated increments crosses a boundary more rarely than Brownian motion of the same
variance (Slepian, Bell Syst. Tech. J. 41, 1962).

Shapes: N requests, P covariates, J = P + 2 columns (canary, covariates, logarithm), B cells, G
sessions, S pairs of a session and a cell.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.common.anytime import Bounds, critical_t

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_LEAST_LEVERAGE = 0.02
"""Share of the canary's variation within cells that the covariates must leave. With less, canary
and stable had no requests at comparable load."""


@dataclass(frozen=True)
class Comparison:
    """The mean difference of logarithms, canary minus stable, and how sure it is."""

    difference: float
    """NaN where no cell has both."""
    error: float
    """Standard error."""
    degrees: float
    sessions: int
    """Sessions of the canary."""

    def bounds(self, alpha_low: float, alpha_high: float) -> Bounds:
        """The ratio canary / stable; each bound ever misses with its alpha at most."""
        if not (math.isfinite(self.difference) and math.isfinite(self.error)):
            return Bounds(math.exp(self.difference), 0.0, math.inf, self.sessions)
        below = self.error * float(critical_t(self.degrees, alpha_low))
        above = self.error * float(critical_t(self.degrees, alpha_high))
        if math.isnan(below) or math.isnan(above):  # no error and no degrees of freedom
            below = above = math.inf
        return Bounds(
            math.exp(self.difference),
            math.exp(self.difference - below),
            math.exp(min(self.difference + above, 700.0)),
            self.sessions,
        )


def compare(
    log_N: Array,
    canary_N: NDArray[np.bool_],
    cells_N: Indices,
    covariates_NP: Array,
    sessions_N: Sequence[Hashable] | NDArray[np.int64],
) -> Comparison:
    """The regression. Cells are any integers; a covariate that never varies is no harm."""
    _, cell_N = np.unique(cells_N, return_inverse=True)
    _, session_N = np.unique(np.asarray(sessions_N), return_inverse=True)
    sessions = len(np.unique(session_N[canary_N]))
    columns_NJ = np.column_stack([canary_N.astype(np.float64), covariates_NP, log_N])
    within_NJ = columns_NJ - _means(columns_NJ, cell_N)
    # Covariates that do not vary within cells would make the equations singular.
    varies_J = (within_NJ**2).sum(axis=0) > 1e-9 * (1 + (columns_NJ**2).sum(axis=0))
    if not len(log_N) or not varies_J[0]:
        return Comparison(math.nan, math.inf, 0.0, sessions)
    varies_J[-1] = True
    columns_NJ, within_NJ = columns_NJ[:, varies_J], within_NJ[:, varies_J]
    total_JJ = within_NJ.T @ within_NJ
    coefficients = _solve(total_JJ[None])[0]
    canary_left_N = within_NJ[:, 0]
    if within_NJ.shape[1] > 2:
        covered_P = np.linalg.lstsq(total_JJ[1:-1, 1:-1], total_JJ[1:-1, 0], rcond=None)[0]
        canary_left_N = canary_left_N - within_NJ[:, 1:-1] @ covered_P
    if (canary_left_N**2).sum() < _LEAST_LEVERAGE * total_JJ[0, 0]:
        return Comparison(math.nan, math.inf, 0.0, sessions)
    residual_N = within_NJ[:, -1] - within_NJ[:, :-1] @ coefficients
    without_G = _solve(total_JJ + _change_without(columns_NJ, cell_N, session_N))[:, 0]
    count = len(without_G)
    error = math.sqrt((count - 1) / count * float(((without_G - without_G.mean()) ** 2).sum()))
    degrees = _degrees(canary_left_N, residual_N, canary_N, session_N)
    return Comparison(
        float(coefficients[0]), error if math.isfinite(error) else math.inf, degrees, sessions
    )


def _means(columns_NJ: Array, cell_N: Indices) -> Array:
    """Each request's mean over its cell."""
    means: Array = (_sums(columns_NJ, cell_N) / np.bincount(cell_N)[:, None])[cell_N]
    return means


def _sums(values_NJ: Array, group_N: Indices) -> Array:
    groups = int(group_N.max()) + 1 if len(group_N) else 0
    return np.stack([np.bincount(group_N, column, groups) for column in values_NJ.T], axis=1)


def _change_without(columns_NJ: Array, cell_N: Indices, session_N: Indices) -> Array:
    """What the cross products within cells change by when a session is left out, [G, J, J]."""
    width = columns_NJ.shape[1]
    # Cross products within a cell do not depend on its origin; a near one keeps their precision.
    columns_NJ = columns_NJ - _means(columns_NJ, cell_N)
    products_NJJ = columns_NJ[:, :, None] * columns_NJ[:, None, :]
    values = np.column_stack([np.ones(len(cell_N)), columns_NJ, products_NJJ.reshape(-1, width**2)])
    cells, keys = int(cell_N.max()) + 1, session_N * (int(cell_N.max()) + 1) + cell_N
    key_S, pair_N = np.unique(keys, return_inverse=True)
    of_pair, of_cell = _sums(values, pair_N), _sums(values, cell_N)
    before, after = of_cell[key_S % cells], of_cell[key_S % cells] - of_pair
    change_SK = _within(after, width) - _within(before, width)
    return _sums(change_SK, key_S // cells).reshape(-1, width, width)


def _within(sums: Array, width: int) -> Array:
    """Cross products around the mean, from counts, sums and products; 0 for an empty cell."""
    count, first, second = sums[:, 0], sums[:, 1 : 1 + width], sums[:, 1 + width :]
    outer = (first[:, :, None] * first[:, None, :]).reshape(len(sums), -1)
    return np.where(count[:, None] > 0.5, second - outer / np.maximum(count, 1)[:, None], 0.0)


def _solve(products_GJJ: Array) -> Array:
    """Coefficients of all columns but the last, which they explain; [G, J - 1]."""
    left, right = products_GJJ[:, :-1, :-1], products_GJJ[:, :-1, -1]
    # Without a session a covariate may be constant: a ridge of rounding size keeps it solvable.
    scale = np.einsum("gjj->gj", products_GJJ[:, :-1, :-1])
    ridge = 1e-10 * (scale.max(axis=1, keepdims=True) + 1e-30)
    left = left + ridge[:, :, None] * np.eye(left.shape[1])
    solved: Array = np.linalg.solve(left, right[:, :, None])[:, :, 0]
    return solved


def _degrees(
    leverage_N: Array, residual_N: Array, canary_N: NDArray[np.bool_], session_N: Indices
) -> float:
    """Welch's and Satterthwaite's degrees of freedom, from each session's expected share.

    Residuals of a session have one correlation, estimated from all pairs.
    """
    count_G = np.bincount(session_N)
    square_G = np.bincount(session_N, residual_N**2)
    pairs = float((count_G * (count_G - 1)).sum())
    product = float((np.bincount(session_N, residual_N) ** 2 - square_G).sum())
    variance = float(square_G.sum()) / len(residual_N)
    alike = min(max(product / pairs / variance, 0.0), 1.0) if pairs and variance else 0.0
    sizes, degrees = [], []
    for arm_N in (canary_N, ~canary_N):
        alone_G = np.bincount(session_N[arm_N], leverage_N[arm_N] ** 2)
        together_G = np.bincount(session_N[arm_N], leverage_N[arm_N]) ** 2
        expected_G = (1 - alike) * alone_G + alike * together_G
        squares = float((expected_G**2).sum())
        if squares <= 0:
            return 0.0
        sizes.append(float(expected_G.sum()))
        degrees.append(sizes[-1] ** 2 / squares - 1)
    if min(degrees) <= 0:
        return 0.0
    return sum(sizes) ** 2 / sum(s**2 / d for s, d in zip(sizes, degrees, strict=True))
