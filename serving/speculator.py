"""What speculates in an engine: an MTP layer, an EAGLE-3 head, n-grams of the request's own text, or nothing.

    Speculator.named("runs/NAME/speculator")     # a directory, told apart by its config.json; or "ngram", "none"
    Speculator.named("ngram").settings(k=4)      # vLLM's speculative_config

Exact replay, draft parity and the exchange of drafters in a live engine exist for MTP directories alone; the others have what the
engine counts.
"""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from outrider.speculators.checkpoints.compatibility import kind_of

Kind = Literal["mtp", "eagle3", "ngram", "none"]

LOOKUP = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
"""Length of the n-grams that are looked up in the text so far; 4 is the longest in vLLM's documentation of the method."""

IN_WORDS = {
    "mtp": "an MTP layer",
    "eagle3": "an EAGLE-3 head",
    "ngram": "n-gram lookup",
    "none": "no speculation",
}


@dataclasses.dataclass(frozen=True)
class Speculator:
    """A kind and, where it has weights, their directory."""

    kind: Kind
    directory: Path | None = None

    @classmethod
    def named(cls, name: str | Path) -> "Speculator":
        """As `--speculator` has it: `ngram`, `none`, or a directory that holds one."""
        if str(name) in ("ngram", "none"):
            return cls(str(name))
        return cls(kind_of(Path(name)), Path(name))

    @classmethod
    def of(cls, speculator: "Speculator | Path | None") -> "Speculator":
        """The same of what an engine is opened with: the directory of an MTP layer, or nothing."""
        if isinstance(speculator, Speculator):
            return speculator
        return cls("none") if speculator is None else cls("mtp", speculator)

    @property
    def has_unroll(self) -> bool:
        """Whether Outrider computes it too: then it can be replayed, compared with the engine's drafts, and exchanged there."""
        return self.kind == "mtp"

    @property
    def drafts_every_step(self) -> bool:
        """Whether the engine's count of drafts is its count of steps; n-gram lookup drafts only where it finds something."""
        return self.directory is not None

    @property
    def in_words(self) -> str:
        """For people."""
        return IN_WORDS[self.kind]

    def settings(
        self,
        k: int | None,
        draft_sample_method: str = "greedy",
        k_per_batch_size: Sequence[tuple[int, int, int]] | None = None,
    ) -> dict[str, Any] | None:
        """vLLM's `speculative_config` for `k` drafted tokens a step; None without speculation. `k_per_batch_size` lists (first batch size,
        last, k)."""
        if self.kind == "none":
            return None
        if k is None:
            raise ValueError("a speculator needs k, the number of tokens to draft")
        settings: dict[str, Any] = {"method": self.kind, "num_speculative_tokens": k}
        if self.kind == "ngram":
            return settings | LOOKUP
        settings |= {"model": str(self.directory), "draft_sample_method": draft_sample_method}
        if k_per_batch_size:
            settings["num_speculative_tokens_per_batch_size"] = [
                list(row) for row in k_per_batch_size
            ]
        return settings
