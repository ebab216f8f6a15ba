"""The plan of a capture, and its pieces, which depend only on the recipe.

    plan = CapturePlan(table, limit, spec, source, CaptureConfig(), out_dir)
    batches = list(capture_batches(plan.rows(), plan.settings.batch_tokens))
    for piece in unfinished_batches(batches, writer.done):
        ...

A piece is a set of rows that are sent to the engine together (`capture.batch_tokens`). bf16
results depend on the batch in which a token is computed, so a piece is always captured as a whole,
by one engine. The feature store is then byte-identical whether one process or any number of
replicas captured it, and whether or not the capture was interrupted; only answers that the target
gave anew (answers.py) are samples, which the same capture stores once.

After an interruption, pieces that are partly in the store are captured again as a whole, but rows
that are already stored are not written again.

Sequences that are too long for the engine are truncated (`drop_overlong_rows`): the prompt and the
first tokens of the completion remain, and their states do not depend on later tokens. If the prompt
alone reaches the limit, nothing is left to train on and the sequence is dropped.
"""

import collections
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from datasets import Dataset
from numpy.typing import NDArray

from outrider.common.errors import OutriderError
from outrider.common.lost_ends import LostEnds, count_lost_ends
from outrider.data.config import CaptureConfig, bytes_per_token
from outrider.data.features.answers import Answers, logged_id
from outrider.data.features.engine_checks import Row
from outrider.data.features.feature_store import MANIFEST, STORED_AS, FeatureStore, Source
from outrider.serving.engine import AskedRow, LoggedRow, batches_by_tokens
from outrider.speculators.features import FeatureSpec


@dataclass(frozen=True)
class CapturePlan:
    """Which rows are captured, which of their states, and where they are stored."""

    table: Dataset
    limit: int
    """Number of tokens after which a row is cut."""
    spec: FeatureSpec
    """The stored streams, the final norm's first."""
    source: Source
    """Identifies target and rows; a store of another source is captured again."""
    settings: CaptureConfig
    out_dir: Path
    score_columns: tuple[str, ...] = ()
    """Columns of the completions' scores; empty if completions are not scored."""
    further: Sequence[AskedRow] = ()
    """Prompts of the training part that the target answers again."""
    answers: Answers = field(default_factory=dict)
    """The target's answers: regenerated ones replace logged ones, further ones are added."""
    lost_ends: LostEnds | None = None
    """Counts of cut rows, for the summary."""

    def rows(self) -> Iterator[LoggedRow]:
        """Yields the rows as they are captured."""
        return capture_rows(self.table, self.limit, self.answers)

    def sample(self) -> list[Row]:
        """Selects the rows for the engine checks."""
        return sample_rows(self.table, self.limit, self.settings.self_check_sequences)

    def is_finished(self) -> bool:
        """Whether a complete store of the same source exists, with at least these streams."""
        if not (self.out_dir / MANIFEST).exists():
            return False
        store = FeatureStore.open(self.out_dir)
        header = store.manifest.header
        return (
            header.source == self.source
            and header.dtype == STORED_AS[self.settings.dtype]
            # More streams than needed are fine, so a store of several kinds serves each of them.
            and set(self.spec.streams) <= set(store.spec.streams)
        )


@dataclass(frozen=True)
class CaptureBatch:
    """Rows that are captured together."""

    index: int
    """Position in the plan."""
    rows: tuple[LoggedRow, ...]

    @property
    def tokens(self) -> int:
        """Total number of tokens."""
        return sum(len(row.token_ids) for row in self.rows)

    @property
    def row_ids(self) -> list[str]:
        """Sequence ids, in order."""
        return [row.row_id for row in self.rows]


def capture_batches(rows: Iterable[LoggedRow], batch_tokens: int) -> Iterator[CaptureBatch]:
    """Yields pieces: consecutive rows totaling at most `batch_tokens`, or one longer row."""
    for index, batch in enumerate(batches_by_tokens(rows, batch_tokens)):
        yield CaptureBatch(index, tuple(batch))


def unfinished_batches(
    plan: Iterable[CaptureBatch], done: frozenset[str]
) -> Iterator[CaptureBatch]:
    """Yields the pieces with a row that is not in `done`."""
    return (piece for piece in plan if not done.issuperset(piece.row_ids))


def state_bytes(spec: FeatureSpec) -> int:
    """Returns the size of one token's id and bfloat16 states, in bytes."""
    return bytes_per_token(spec.width, "bf16", len(spec.streams))


def capture_rows(table: Dataset, limit: int, answers: Answers | None = None) -> Iterator[LoggedRow]:
    """Yields the rows cut to `limit` tokens, then the further answers in their order.

    Responses whose sequence is in `answers` are replaced.
    """
    answers = answers or {}
    sampling = ("temperature", "top_p", "top_k", "grammar")
    names = ["sequence_id", "token_ids", "completion_start", *sampling]
    prompts = {logged_id(name) for name in answers if logged_id(name) != name}
    answered: dict[str, LoggedRow] = {}
    for row in table.select_columns(names):
        logged = LoggedRow(*(row[name] for name in names))
        if logged.row_id in prompts:
            answered[logged.row_id] = logged
        if logged.row_id in answers:
            logged = _with_answer(logged, answers[logged.row_id])
        yield logged._replace(token_ids=logged.token_ids[:limit])
    for name, answer in answers.items():
        if logged_id(name) != name:
            further = _with_answer(answered[logged_id(name)], answer)
            yield further._replace(row_id=name, token_ids=further.token_ids[:limit])


def expected_tokens(plan: CapturePlan) -> int:
    """Returns the tokens to capture if each further answer is as long as the logged one."""
    asked = collections.Counter(logged_id(row.row_id) for row in plan.further)
    return sum(len(row.token_ids) * (1 + asked[row.row_id]) for row in plan.rows())


def _with_answer(row: LoggedRow, answer: NDArray[np.int32]) -> LoggedRow:
    """The row with another completion."""
    prompt = row.token_ids[: row.completion_start]
    return row._replace(token_ids=[*prompt, *answer.tolist()])


def sample_rows(table: Dataset, limit: int, count: int) -> list[Row]:
    """Selects at most `count` rows for engine checks, spread over the table."""
    # Spread over the log, since a beginning may be one user or one hour.
    spread = np.linspace(0, len(table) - 1, min(count, len(table)), dtype=int)
    return [row[:3] for row in capture_rows(table.select(spread), limit)]


def capture_batch_tokens(table: Dataset, limit: int, batch_tokens: int) -> int:
    """Returns the number of tokens of the largest possible piece: a batch, or one longer row."""
    longest_row = max(min(len(token_ids), limit) for token_ids in table["token_ids"])
    return max(batch_tokens, longest_row)


def drop_overlong_rows(table: Dataset, max_model_len: int) -> tuple[Dataset, LostEnds]:
    """Drops rows that cannot be truncated to fit; also returns the counts.

    Other long rows stay whole in the table: capture reads their first `LostEnds.limit` tokens.

    Raises:
        OutriderError: If no row is left.
    """
    lengths = [len(token_ids) for token_ids in table["token_ids"]]
    key = f"serving.engine.max_model_len = {max_model_len:,}"
    # Minus 1, because the engine also samples one token.
    counts, fitting = count_lost_ends(lengths, table["completion_start"][:], max_model_len - 1, key)
    if not fitting:
        raise OutriderError(
            f"serving.engine.max_model_len = {max_model_len}: none of {len(lengths)} sequences is"
            f" left; raise it, up to {max(lengths) + 1}"
        )
    return (table.select(fitting) if counts.dropped else table), counts
