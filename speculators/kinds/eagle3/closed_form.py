"""Initializes, by ridge regression, EAGLE-3 heads that use Llama's attention.

    fit_head(head, ends, rows, seed)      # the head drafts before its first training step

Every matrix that writes into the residual stream is the solution of a least-squares problem with
outputs y_{i+1+s}, the state from which the target predicts the token of draft s:

    fc and attention    y_{i+1} ~ A a_i + B e_{i+1}        a: auxiliary states, e: normed embedding
    mlp.down_proj       y_{i+1+s} - r_i(s) ~ D f_i(s)      r: residual stream, f: gated values of
                                                           the MLP, drafts s = 0 and 1 together

Queries and keys are the same random projection of e, with a little noise in the queries, so a
token attends to itself and its earlier occurrences, which have the same value. The values are the
leading directions of B e, as many as fit into the KV heads. Gate and up projections stay random, so
the MLP is a regression on random features (Rahimi and Recht, 2008). It also learns the second
draft, which reads the head's own state, not the target's. Only anchors count, as in the loss.

Memory use, before the optimizer has state, is mostly four float64 matrices [X, X] (`MemoryPlan`):
26 GB for R1 with X = 28,672 (states and embedding), 0.2 GB for SmolLM2 with 2,304.

Shapes: N anchors, H hidden, X features, Y outputs, D dims of a head, V values of all heads.
"""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import cast

import torch
from torch import Tensor

from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds.drafter import Batch
from outrider.speculators.kinds.eagle3.layer import EagleHead
from outrider.speculators.layers.llama_attention import LlamaAttention
from outrider.speculators.unroll import valid_BT

STRENGTHS = (1.0, 3e-1, 1e-1, 3e-2, 1e-2, 3e-3, 1e-3)
"""Ridge strengths, relative to the mean square of each feature."""

HELD_OUT = 8
"""One in `HELD_OUT` rows is held out to choose the strength."""

ANCHORS_PER_FEATURE = 64
"""Anchors to read per feature; more would hardly change the solution."""

SELF_SCORE = 13.0
"""Mean attention logit between a token and itself; others are near 0."""

QUERY_NOISE = 0.1
"""Scale of the noise in query weights, which distinguishes query heads with shared keys."""

DRAFTS, DRAFT_WEIGHT = 2, 0.6
"""Number of drafts that the MLP is fitted to, and decay factor of their weights."""

Rows = Callable[[], Iterable[Batch]]
"""The type of `Origin.rows`."""


class Ridge:
    """Ridge regression of y on x, accumulated over fitted and held-out rows."""

    def __init__(self, features: int, outputs: int, device: torch.device):
        self.anchors = 0
        self.rows = 0
        self.fitted, self.held_out = (
            [
                torch.zeros(features, width, dtype=torch.float64, device=device)
                for width in (features, outputs)
            ]
            for _ in range(2)
        )

    def take_needed_rows(self, rows: Iterable[Batch]) -> Iterator[Batch]:
        """Yields rows until the regression has enough anchors."""
        for row in rows:
            if self.anchors >= ANCHORS_PER_FEATURE * len(self.fitted[0]):
                return
            yield row
            self.rows += 1

    def add(self, x_NX: Tensor, y_NY: Tensor) -> None:
        """Adds anchors of the current row."""
        gram_XX, cross_XY = self.held_out if self.rows % HELD_OUT == 1 else self.fitted
        x_NX = x_NX.float()
        gram_XX += x_NX.T @ x_NX
        cross_XY += x_NX.T @ y_NY.float()
        self.anchors += len(x_NX)

    def solve(self) -> Tensor:
        """Solves for B [Y, X] with the ridge strength that fits held-out rows best.

        The solution uses all rows. With only one row, the largest strength is used. Call this only
        once, since it adds the held-out sums to the fitted ones.
        """
        gram_XX, cross_XY = self.fitted
        held_gram_XX, held_cross_XY = self.held_out
        errors = {}
        for strength in STRENGTHS:
            b_XY = _solution(gram_XX, cross_XY, strength)
            # ||Y - X B||^2 = tr(B' G B) - 2 tr(B' C) + const, from the held-out sums alone.
            errors[strength] = float((b_XY * (held_gram_XX @ b_XY - 2 * held_cross_XY)).sum())
        # In place: with R1's 28,672 features, one Gram matrix in float64 takes 6.6 GB.
        gram_XX += held_gram_XX
        cross_XY += held_cross_XY
        return _solution(gram_XX, cross_XY, min(errors, key=errors.__getitem__)).T.float()


def _solution(gram_XX: Tensor, cross_XY: Tensor, strength: float) -> Tensor:
    """(G + strength * diag G)^-1 C, by Cholesky on normalized features."""
    # Normalized to a diagonal of 1, so that one strength suits features of all magnitudes.
    scale_X1 = gram_XX.diagonal().sqrt().clamp_min(1e-12)[:, None]
    scaled_XX = (gram_XX / scale_X1).div_(scale_X1.T)
    scaled_XX.diagonal().add_(strength)
    torch.linalg.cholesky(scaled_XX, out=scaled_XX)
    return torch.cholesky_solve(cross_XY / scale_X1, scaled_XX).div_(scale_X1)


@torch.no_grad()
def fit_head(head: EagleHead, ends: TargetEnds, rows: Rows, seed: int) -> None:
    """Fits fc, attention, MLP and last norm of a randomly initialized head."""
    hidden = head.shape.hidden
    states = head.shape.states
    ridge = Ridge(states + hidden, hidden, head.fc.weight.device)
    sum_H = torch.zeros(hidden, device=head.fc.weight.device)
    for row in ridge.take_needed_rows(rows()):
        anchors_N = row.anchor_BT.flatten().nonzero()[:, 0]
        a_NX = row.inputs_BTX.flatten(0, 1)[anchors_N].to(ends.dtype)
        e_NH = head.midlayer.input_layernorm(ends.embed(row.token_ids_BT.flatten()[anchors_N + 1]))
        ridge.add(torch.cat([a_NX, e_NH], dim=-1), row.hidden_BTH.flatten(0, 1)[anchors_N + 1])
        sum_H += e_NH.sum(0)
    a_HX, b_HH = ridge.solve().split([states, hidden], dim=1)
    covariance_HH = (ridge.fitted[0][states:, states:] / ridge.anchors).float()
    head.fc.weight.copy_(a_HX)
    _set_attention(head=head, b_HH=b_HH, covariance_HH=covariance_HH, mean_H=sum_H, seed=seed)
    head.midlayer.mlp.down_proj.weight.zero_()
    for drafts in range(1, DRAFTS + 1):
        _fit_mlp(head, ends, rows, drafts)


def _set_attention(
    head: EagleHead, b_HH: Tensor, covariance_HH: Tensor, mean_H: Tensor, seed: int
) -> None:
    """Sets attention to output the token's own B e, given e's moments."""
    shape = head.shape
    attention = cast(LlamaAttention, head.midlayer.self_attn)
    dim = shape.head_dim
    values = shape.kv_heads * shape.head_dim
    power_H, axes_HH = torch.linalg.eigh(covariance_HH)
    # The square root of the covariance; rounding can make its smallest eigenvalues negative.
    root_HH = (axes_HH * power_H.clamp_min(0).sqrt()) @ axes_HH.T
    # The directions that approximate B e with the least squared error: Eckart and Young, in the
    # metric of e's covariance.
    leading_HV = torch.linalg.svd(b_HH @ root_HH)[0][:, :values]
    out_HV = torch.nn.functional.pad(leading_HV, (0, values - leading_HV.shape[1]))
    value_VH = out_HV.T @ b_HH
    generator = torch.Generator().manual_seed(seed)
    for projection in (attention.k_proj, attention.v_proj):
        projection.weight.zero_()
    attention.q_proj.weight.mul_(QUERY_NOISE)
    queries_each = shape.heads // shape.kv_heads
    for group in range(shape.kv_heads):
        drawn_HD = torch.randn(shape.hidden, dim, generator=generator).to(mean_H.device)
        # Orthogonal to the mean of e, which all tokens share.
        basis_HD = torch.linalg.qr(torch.cat([mean_H[:, None], drawn_HD], dim=1))[0][:, 1:]
        # E |K e|^2 times the softmax scale is the mean logit of a token with itself; it is scaled
        # to SELF_SCORE.
        size = (basis_HD.T @ covariance_HH @ basis_HD).trace() * head.softmax_scale
        same_DH = basis_HD.T * (SELF_SCORE / size).sqrt()
        of_group = slice(group * dim, (group + 1) * dim)
        attention.k_proj.weight[of_group, : shape.hidden][: len(same_DH)] = same_DH
        attention.v_proj.weight[of_group, : shape.hidden] = value_VH[of_group]
        for query in range(group * queries_each, (group + 1) * queries_each):
            of_query = slice(query * dim, (query + 1) * dim)
            attention.q_proj.weight[of_query, : shape.hidden][: len(same_DH)] += same_DH
            # The query heads of a group give the same output; together they add it once.
            attention.o_proj.weight[:, of_query] = out_HV[:, of_group] / queries_each


def _fit_mlp(head: EagleHead, ends: TargetEnds, rows: Rows, drafts: int) -> None:
    """Fits `down_proj` at depths 0 to `drafts` - 1; sets the last norm.

    The norm's weight is the root mean square of the residual stream, so that an uncertain
    regression, whose output is small, gives small logits.
    """
    down = head.midlayer.mlp.down_proj
    seen = []
    ridge = Ridge(down.in_features, down.out_features, down.weight.device)
    size = 0.0

    def see(_: object, inputs: tuple[Tensor], out_NH: Tensor) -> None:
        seen.append((inputs[0], out_NH))

    with contextlib.ExitStack() as hooks:
        for module in (down, head.norm):
            hooks.enter_context(module.register_forward_hook(see))
        for row in ridge.take_needed_rows(rows()):
            seen.clear()
            anchors_N, _ = head.unroll(ends, row, drafts)
            for s in range(drafts):
                (features_NX, mlp_NH), (stream_NH, _) = seen[2 * s : 2 * s + 2]
                known_N = valid_BT(row.sequence_BT, s).flatten()[anchors_N]
                y_NH = row.hidden_BTH.flatten(0, 1)[anchors_N[known_N] + 1 + s]
                rest_NH = y_NH - (stream_NH - mlp_NH)[known_N]
                # A weight w of the squared error is a factor sqrt(w) on both sides of the
                # regression.
                root = DRAFT_WEIGHT ** (s / 2)
                ridge.add(root * features_NX[known_N], root * rest_NH)
                size += float(stream_NH[known_N].double().pow(2).mean(-1).sum())
    down.weight.copy_(ridge.solve())
    head.norm.weight.fill_(math.sqrt(size / ridge.anchors))
