"""Writes captured states into a feature store, with a progress bar.

    write_store(spec, states, rows, tokens, out_dir, source, CaptureConfig(), console)

Where the states come from is the caller's: an engine, replicas of a cluster.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from outrider.data.config import CaptureConfig
from outrider.data.features.capture_plan import Piece, pieces, unfinished
from outrider.data.features.feature_writer import FeatureWriter
from outrider.serving.engine import LoggedRow, State
from outrider.speculators.features import FINAL_NORM, FeatureSpec

Captured = tuple[LoggedRow, State]
"""A row, and its states and scores."""


def write_store(
    spec: FeatureSpec,
    states: Callable[[Iterator[Piece]], Iterator[Captured]],
    rows: Iterable[LoggedRow],
    tokens: int,
    out_dir: Path,
    source: dict[str, Any],
    capture: CaptureConfig,
    console: Console,
    score_columns: Sequence[str] = (),
    note: Callable[[], str] = str,
) -> int:
    """Captures the rows that the store lacks, and returns their number of tokens.

    `states` yields a plan's rows in order, each with its states and scores. `note` is shown after
    the progress.
    """
    final, *auxiliary = spec.streams
    captured = 0
    columns = (
        TextColumn("capture"),
        BarColumn(),
        TextColumn(
            "{task.completed:,.0f}/{task.total:,.0f} tokens, {task.fields[rate]:,.0f} tokens/s,"
            " time left"
        ),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with (
        FeatureWriter(
            out_dir,
            final.width,
            source,
            capture.shard_megabytes,
            score_columns,
            capture.dtype,
            auxiliary,
        ) as writer,
        Progress(*columns, console=console, transient=True) as progress,
    ):
        if writer.restarted:
            console.print(
                f"{out_dir}: states of another target or of other sequences; capturing again",
                soft_wrap=True,
            )
        elif writer.done:
            console.print(
                f"{out_dir}: resumes after {len(writer.done)} captured sequences", soft_wrap=True
            )
        task = progress.add_task(
            "capture", total=tokens, completed=writer.tokens, rate=0.0, note=""
        )
        began, done = time.monotonic(), frozenset(writer.done)
        plan = unfinished(pieces(rows, capture.batch_tokens), done)
        for row, (_, by_name, scores) in states(plan):
            if row.row_id in done:
                continue
            hidden_TH = by_name.pop(FINAL_NORM)
            writer.write(
                row.row_id, row.token_ids, hidden_TH, row.completion_start, scores, by_name
            )
            captured += len(row.token_ids)
            rate = captured / (time.monotonic() - began)
            progress.update(task, completed=writer.tokens, rate=rate, note=note())
    return captured
