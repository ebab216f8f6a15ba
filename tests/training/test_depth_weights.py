"""Depth weights: closed forms, and visited weights against a literal walk of the engine's steps."""

import itertools

import pytest
import torch

from outrider.training.objective import fixed_weights, visited_weights


def test_fixed_weights() -> None:
    assert fixed_weights("decay", 3, 0.5).tolist() == pytest.approx([4 / 7, 2 / 7, 1 / 7])
    assert fixed_weights("decay", 4, 1.0).tolist() == pytest.approx([0.25] * 4)
    assert fixed_weights("uniform", 4, 0.5).tolist() == pytest.approx([0.25] * 4)


def literal_weights(
    a: dict[tuple[int, int], float], anchors: int, depth: int
) -> dict[tuple[int, int], float]:
    """How often draft s after anchor t is offered: walks every outcome of every step."""
    offered: dict[tuple[int, int], float] = {}
    front = [(0, 1.0)]
    while front:
        t, probability = front.pop()
        if t >= anchors:
            continue
        for s in range(depth):
            if t + s >= anchors:
                front.append((t + s + 1, probability))
                break
            offered[t, s] = offered.get((t, s), 0.0) + probability
            if probability * (1 - a[t, s]):
                front.append((t + s + 1, probability * (1 - a[t, s])))
            probability *= a[t, s]
        else:
            front.append((t + depth + 1, probability))
    return offered


@pytest.mark.parametrize("certain", [False, True])
def test_visited_weights_count_how_often_each_draft_is_offered(certain: bool) -> None:
    depth, anchors_R = 3, [5, 1, 2, 7]
    torch.manual_seed(0)
    accepted_KN = torch.rand(depth, sum(anchors_R))
    if certain:
        accepted_KN = accepted_KN.round()
    found_KN = visited_weights(accepted_KN, torch.tensor(anchors_R))
    expected_KN = torch.zeros(depth, sum(anchors_R))
    for start, anchors in zip(itertools.accumulate([0, *anchors_R[:-1]]), anchors_R, strict=True):
        # Draft s after anchor t predicts the target of row t + s.
        a = {}
        for t, s in itertools.product(range(anchors), range(depth)):
            if t + s < anchors:
                a[t, s] = float(accepted_KN[s, start + t + s])
        for (t, s), weight in literal_weights(a, anchors, depth).items():
            expected_KN[s, start + t + s] = weight
    torch.testing.assert_close(found_KN, expected_KN)
    assert not found_KN.requires_grad
