"""Data sheets of GPUs: memory, bandwidth and dense bf16 peak by card.

    card = card_named("NVIDIA GeForce RTX 4090")      # as nvidia-smi and --gpu name it
    card.bytes, card.bytes_per_s, card.flops

A name that fits no row has no card: an A10G has the memory of an A10 and half of its peak.
"""

import re
from typing import NamedTuple


class Card(NamedTuple):
    """One GPU's data sheet."""

    name: str
    mebibytes: int
    """As nvidia-smi shows it. Data sheets of L4, A10 and L40S include the 1/16 that ECC takes."""
    bytes_per_s: float
    """Peak memory bandwidth"""
    flops: float
    """Dense bf16 peak with float32 sums, per second; half of a data sheet's figure with sparsity"""

    @property
    def bytes(self) -> int:
        """Memory in bytes."""
        return self.mebibytes * 2**20


# NVIDIA's data sheets "H100 Tensor Core GPU", "H200 Tensor Core GPU", "HGX B200", "A100 Tensor Core
# GPU", "L40S", "L4" and "A10"; for the RTX 4090 the whitepaper "Ada GPU Architecture", appendix A.
# H800 and A800 differ from H100 and A100 in NVLink only.
CARDS = (
    Card("B200", 183_359, 8.0e12, 2.25e15),
    Card("H200", 143_771, 4.8e12, 9.89e14),
    Card("H100 PCIe", 81_559, 2.0e12, 7.56e14),
    Card("H100 NVL", 95_830, 3.9e12, 8.35e14),
    Card("H100", 81_559, 3.35e12, 9.89e14),
    Card("H800", 81_559, 3.35e12, 9.89e14),
    Card("A100 40GB", 40_960, 1.555e12, 3.12e14),
    Card("A100", 81_920, 2.039e12, 3.12e14),
    Card("A800", 81_920, 2.039e12, 3.12e14),
    Card("L40S", 46_068, 8.64e11, 3.62e14),
    Card("A10", 23_028, 6.0e11, 1.25e14),
    Card("L4", 23_034, 3.0e11, 1.21e14),
    Card("RTX 4090", 24_564, 1.008e12, 1.652e14),
)
"""More special names come first: the first row whose words a name has is its card."""


def card_named(name: str) -> Card | None:
    """The card whose words a device name contains; None if none fits."""
    words = set(re.split(r"[\s_-]+", name.upper()))
    if "LAPTOP" in words:  # with fewer multiprocessors and slower memory
        return None
    if "4090" in words:  # `--gpu 4090`
        words.add("RTX")
    return next((card for card in CARDS if set(card.name.upper().split()) <= words), None)
