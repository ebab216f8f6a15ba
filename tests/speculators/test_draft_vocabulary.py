"""The draft tokens of a warm start: a base's, mixed with those of the traffic."""

import pytest
import torch
from torch import Tensor

from outrider.speculators.draft_vocabulary import coverage, mixed_ids

VOCABULARY = 2000
DRAFTS = 300


def zipf(order: Tensor) -> Tensor:
    """Probabilities [V] that fall with a token's rank in `order`."""
    probabilities_V = torch.zeros(VOCABULARY)
    probabilities_V[order] = 1 / (torch.arange(VOCABULARY) + 5)
    return probabilities_V / probabilities_V.sum()


def counts(probabilities_V: Tensor, tokens: int, generator: torch.Generator) -> Tensor:
    drawn = torch.multinomial(probabilities_V, tokens, replacement=True, generator=generator)
    return torch.bincount(drawn, minlength=VOCABULARY)


def most_frequent(counts_V: Tensor, size: int) -> Tensor:
    return counts_V.argsort(descending=True, stable=True)[:size].sort().values


@pytest.mark.parametrize("seed", range(5))
def test_a_small_log_of_the_bases_kind_keeps_what_the_base_drafts(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    text_V = zipf(torch.randperm(VOCABULARY, generator=generator))
    base_ids_D = most_frequent(counts(text_V, 1_000_000, generator), DRAFTS)
    counts_FV = torch.stack([counts(text_V, 100, generator) for _ in range(5)])
    later_V = counts(text_V, 1_000_000, generator)
    mixed = coverage(later_V, mixed_ids(base_ids_D, counts_FV))
    of_base = coverage(later_V, base_ids_D)
    assert mixed > of_base - 0.01
    assert mixed > coverage(later_V, most_frequent(counts_FV.sum(0), DRAFTS)) + 0.1


@pytest.mark.parametrize("seed", range(5))
def test_other_text_exchanges_the_bases_tokens(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    base_V = zipf(torch.randperm(VOCABULARY, generator=generator))
    base_ids_D = most_frequent(counts(base_V, 1_000_000, generator), DRAFTS)
    text_V = zipf(torch.randperm(VOCABULARY, generator=generator))
    counts_FV = torch.stack([counts(text_V, 5_000, generator) for _ in range(5)])
    later_V = counts(text_V, 1_000_000, generator)
    mixed_ids_D = mixed_ids(base_ids_D, counts_FV)
    assert len(mixed_ids_D) == DRAFTS
    assert torch.equal(mixed_ids_D, mixed_ids_D.unique())
    best = coverage(later_V, most_frequent(later_V, DRAFTS))
    assert coverage(later_V, mixed_ids_D) > best - 0.02
    assert coverage(later_V, base_ids_D) < best - 0.3


def test_without_traffic_the_bases_tokens_stay() -> None:
    base_ids_D = torch.tensor([3, 5, 7])
    for parts in (1, 5):
        counts_FV = torch.zeros(parts, VOCABULARY, dtype=torch.long)
        assert torch.equal(mixed_ids(base_ids_D, counts_FV), base_ids_D)


def test_a_token_that_only_one_part_has_replaces_none_of_the_bases() -> None:
    base_ids_D = torch.tensor([0, 1])
    counts_FV = torch.tensor([[3, 3, 0, 0], [3, 0, 3, 0], [3, 0, 0, 3]])
    # Without the third part, token 1 occurs as often as 2; with the first two, 3 does not occur.
    assert mixed_ids(base_ids_D, counts_FV).tolist() == [0, 1]
    counts_FV = torch.tensor([[3, 1, 2, 0], [3, 0, 2, 0], [3, 0, 2, 0]])
    assert mixed_ids(base_ids_D, counts_FV).tolist() == [0, 2]
