"""Regions of a response: reasoning and answer, positions from the start, and the timed tokens.

    regions = Regions.of_target(target_dir)
    regions.members(token_ids_T, completion_start)     # [A, G] bool

A region is a set of anchors. The step that starts at an anchor and the token after the anchor
belong to the anchor's region. Over a dimension's regions, steps and tokens add up to those of the
response.

Shapes: T tokens of prompt and response, A anchors (the response's tokens but the last), G regions,
K depth.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.data.tokenize.emitted_text import END_THINK, THINK

POSITIONS = (128, 512, 2048)
"""Boundaries of the regions of `position in response`, in response tokens."""

NAMES: tuple[tuple[str, str], ...] = (
    ("part of response", "reasoning"),
    ("part of response", "answer"),
    *(("position in response", f"up to {end:,} tokens") for end in POSITIONS),
    ("position in response", f"beyond {POSITIONS[-1]:,}"),
)
"""(dimension, name) of the regions of every response."""

TIMED = "timed tokens of the response"
"""Dimension of the first `eval.max_tokens` tokens, which servers are timed on, and the rest."""

OPENING_TOKENS = 4
"""A prompt that opens the reasoning has `<think>` among its last OPENING_TOKENS tokens."""


@dataclass(frozen=True)
class Regions:
    """Token ids that delimit reasoning, and the number of timed tokens."""

    think: int | None
    """None if the target has none; so for `end_think`"""
    end_think: int | None
    timed: int | None = None
    """Number of tokens after which timed responses are cut; None: without the regions of TIMED"""

    @property
    def names(self) -> tuple[tuple[str, str], ...]:
        """(dimension, name) of the G regions."""
        if self.timed is None:
            return NAMES
        return (*NAMES, (TIMED, f"the first {self.timed:,}"), (TIMED, "the rest"))

    @classmethod
    def of_target(cls, target_dir: Path, timed: int | None = None) -> "Regions":
        """The ids in the target's tokenizer."""
        from tokenizers import Tokenizer

        path = Path(target_dir) / "tokenizer.json"
        if not path.is_file():
            return cls(None, None, timed)
        tokenizer = Tokenizer.from_file(str(path))
        return cls(tokenizer.token_to_id(THINK), tokenizer.token_to_id(END_THINK), timed)

    def members(self, token_ids_T: Tensor, completion_start: int) -> Tensor:
        """Membership [A, G] bool of anchors in regions; reasoning includes `</think>`."""
        # A step belongs to the region of the first token that it delivers, the one after its
        # anchor.
        next_A = torch.arange(1, len(token_ids_T) - completion_start)
        answer_A = next_A > self._last_of_reasoning(token_ids_T, completion_start)
        range_A = torch.bucketize(next_A, torch.tensor(POSITIONS), right=True)
        parts = [(answer_A.long(), 2), (range_A, len(POSITIONS) + 1)]
        if self.timed is not None:
            # A response cut after n tokens has the indices below n, of which 0 is the prefill's.
            parts.append(((next_A >= self.timed).long(), 2))
        return torch.cat([F.one_hot(*part) for part in parts], dim=1).bool()

    def sums(
        self, token_ids_T: Tensor, completion_start: int, visits_AK: Tensor
    ) -> tuple[Tensor, Tensor]:
        """A response's tokens [G] and expected steps [G, K] in each region.

        `visits_AK` is the probability that a step starts at each anchor; more rows are padding.
        """
        member_AG = self.members(token_ids_T, completion_start).double()
        # A step counts in the region where it starts.
        return member_AG.sum(dim=0), member_AG.T @ visits_AK[: len(member_AG)]

    def _last_of_reasoning(self, token_ids_T: Tensor, completion_start: int) -> int:
        """Index of the last reasoning token in the response; -1 without reasoning."""
        response_T = token_ids_T[completion_start:]
        if self.end_think is not None:
            closed = (response_T == self.end_think).nonzero()
            if len(closed):
                return int(closed[0])
        # The template writes <think> into the prompt (R1) or the model writes it itself.
        opening = token_ids_T[max(0, completion_start - OPENING_TOKENS) : completion_start].tolist()
        starts = len(response_T) > 0 and int(response_T[0]) == self.think
        opened = self.think is not None and (self.think in opening or starts)
        # A response cut before `</think>` is all reasoning, unless the prompt closed it.
        return len(response_T) if opened and self.end_think not in opening else -1
