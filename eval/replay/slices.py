"""Acceptance length by slice of the held-out traffic, base and custom.

    sliced(base, custom, k=3, slices=slices)["tenant"][0].ratio

Slices of responses are those that the split named (tenant, route, template, ...) and the length of
the prompt. Slices within responses (`Regions`) are reasoning and answer, and the position. A region
is a set of anchors. The step that starts at an anchor belongs to its region, and so does the token
after the anchor. Over the regions of a dimension, steps and tokens sum to the response's.

Every figure is a ratio of sums over a slice's responses; its interval is over the slice's sessions
or users, and is null where they are few (eval/stats/clusters.py).

Shapes: T tokens of prompt and response, A anchors (the response's tokens but the last), G regions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from outrider.data.tokenize.emitted_text import END_THINK, THINK
from outrider.eval.replay.replay import ReplaySums
from outrider.eval.results.acceptance import Slice
from outrider.eval.results.parts import ClusteredEstimate
from outrider.eval.stats.clusters import Statistic, clustered

if TYPE_CHECKING:
    import torch

PROMPT_LENGTHS = (256, 1024, 4096, 16384)
"""Upper ends in tokens of the slices by prompt length; longer prompts are the last slice."""

POSITIONS = (128, 512)
"""Tokens of the response after which the next region of `position in response` begins."""

NAMES: tuple[tuple[str, str], ...] = (
    ("part of response", "reasoning"),
    ("part of response", "answer"),
    ("position in response", f"first {POSITIONS[0]} tokens"),
    ("position in response", f"up to {POSITIONS[1]}"),
    ("position in response", "beyond"),
)
"""(dimension, name) of the G regions."""

OPENING_TOKENS = 4
"""A prompt that opens the reasoning has `<think>` among this many of its last tokens."""


Slices = Mapping[str, Mapping[str, Sequence[str]]]
"""dimension -> name -> sequence ids"""

SliceSums = tuple[str, str, NDArray[Any], NDArray[Any]]
"""(dimension, name, rows, [tokens, base's steps, custom's steps] of each row)."""


@dataclass(frozen=True)
class Regions:
    """Token ids that delimit a target's reasoning.

    An id is None where the target has no such token; everything is then answer.
    """

    think: int | None
    end_think: int | None

    @classmethod
    def of_target(cls, target_dir: Path) -> "Regions":
        """The ids in the target's tokenizer."""
        from tokenizers import Tokenizer

        path = Path(target_dir) / "tokenizer.json"
        if not path.is_file():
            return cls(None, None)
        tokenizer = Tokenizer.from_file(str(path))
        return cls(tokenizer.token_to_id(THINK), tokenizer.token_to_id(END_THINK))

    def members(self, token_ids_T: "torch.Tensor", completion_start: int) -> "torch.Tensor":
        """[A, G] bool: is anchor a in region g? Reasoning includes `</think>`."""
        import torch

        # Index in the response of the token after each anchor.
        next_A = torch.arange(1, len(token_ids_T) - completion_start)
        answer_A = next_A > self._last_of_reasoning(token_ids_T, completion_start)
        first_A, early_A = next_A < POSITIONS[0], next_A < POSITIONS[1]
        return torch.stack([~answer_A, answer_A, first_A, early_A & ~first_A, ~early_A], dim=1)

    def _last_of_reasoning(self, token_ids_T: "torch.Tensor", completion_start: int) -> int:
        """Index in the response; -1 where it has no reasoning."""
        response_T = token_ids_T[completion_start:]
        if self.end_think is not None and len(closed := (response_T == self.end_think).nonzero()):
            return int(closed[0])
        opening = token_ids_T[max(0, completion_start - OPENING_TOKENS) : completion_start].tolist()
        starts = len(response_T) > 0 and int(response_T[0]) == self.think
        opened = self.think is not None and (self.think in opening or starts)
        # A response cut before `</think>` is all reasoning, unless the prompt closed it.
        return len(response_T) if opened and self.end_think not in opening else -1


def by_prompt_length(starts: Mapping[str, int]) -> dict[str, list[str]]:
    """Slice -> sequence ids, by the prompt's tokens (`starts`: id -> completion_start).

    Shortest first; empty slices are left out.
    """
    names = [f"up to {limit:,} tokens" for limit in PROMPT_LENGTHS]
    names.append(f"beyond {PROMPT_LENGTHS[-1]:,}")
    slices: dict[str, list[str]] = {name: [] for name in names}
    for sequence_id, start in starts.items():
        slices[names[int(np.searchsorted(PROMPT_LENGTHS, start))]].append(sequence_id)
    return {name: ids for name, ids in slices.items() if ids}


def sliced(base: ReplaySums, custom: ReplaySums, k: int, slices: Slices) -> dict[str, list[Slice]]:
    """The slices of each dimension that has more than one."""
    if base.sequence_ids != custom.sequence_ids:
        raise ValueError("base and custom were replayed on different sequences")
    table: dict[str, list[Slice]] = {}
    for dimension, name, rows_N, sums_NM in (
        *_of_responses(base, custom, k, slices),
        *_of_regions(base, custom, k),
    ):
        # A region may be so small that no step is expected to start in it.
        if sums_NM.sum(axis=0).all():
            whose = [(base.sessions[row], base.users[row]) for row in rows_N]
            table.setdefault(dimension, []).append(_slice(name, sums_NM, whose))
    return {dimension: rows for dimension, rows in table.items() if len(rows) > 1}


def _of_responses(
    base: ReplaySums, custom: ReplaySums, k: int, slices: Slices
) -> Iterator[SliceSums]:
    """Slices of whole responses."""
    place = {sequence_id: row for row, sequence_id in enumerate(base.sequence_ids)}
    sums_RM = np.stack([base.tokens_R, base.steps_RK[:, k - 1], custom.steps_RK[:, k - 1]], axis=1)
    for dimension, names in slices.items():
        for name, ids in names.items():
            rows_N = np.array([place[each] for each in ids if each in place], int)
            if len(rows_N):
                yield dimension, name, rows_N, sums_RM[rows_N]


def _of_regions(base: ReplaySums, custom: ReplaySums, k: int) -> Iterator[SliceSums]:
    """Regions within responses; a row is a response that has the region."""
    for g, (dimension, name) in enumerate(base.regions):
        tokens_R = base.region_tokens_RG[:, g]
        rows_N = tokens_R.nonzero()[0]
        steps = [sums.region_steps_RGK[rows_N, g, k - 1] for sums in (base, custom)]
        yield dimension, name, rows_N, np.stack([tokens_R[rows_N], *steps], axis=1)


def _slice(name: str, sums_NM: NDArray[Any], whose: Sequence[tuple[str, str]]) -> Slice:
    sessions, users = zip(*whose, strict=True)

    def estimate(statistic: Statistic) -> ClusteredEstimate:
        return clustered(sums_NM, sessions, statistic, users=users)

    return Slice(
        name=name,
        base=estimate(lambda s: s[..., 0] / s[..., 1]),
        custom=estimate(lambda s: s[..., 0] / s[..., 2]),
        ratio=estimate(lambda s: s[..., 1] / s[..., 2]),
    )
