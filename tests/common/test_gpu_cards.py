"""Cards by the names that nvidia-smi, torch and people use."""

import pytest

from outrider.common.gpu_cards import CARDS, card_named


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H100 NVL", "H100 NVL"),
        ("NVIDIA H200", "H200"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-SXM4-40GB", "A100 40GB"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("rtx4090", None),
        ("h100", "H100"),
        ("NVIDIA A10G", None),  # half of an A10's peak
        ("NVIDIA L40", None),
        ("NVIDIA GH200 480GB", None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("AMD Instinct MI300X", None),
        ("", None),
    ],
)
def test_a_name_has_the_card_whose_words_it_contains(name: str, card: str | None) -> None:
    found = card_named(name)
    assert (found and found.name) == card


def test_every_card_is_found_by_its_own_name() -> None:
    for card in CARDS:
        assert card_named(card.name) == card == card_named(f"NVIDIA {card.name}")
