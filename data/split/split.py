"""Split: training, validation and held-out parts, by session and time.

A speculator serves traffic that comes after its training. So it is chosen on later traffic than it
was trained on, and measured on even later traffic. Two points in time separate the parts; a session
(`sequences.session_names`) belongs to the part of its first exchange. Its exchanges after that
part's end are left out, so that no part overlaps a later one. Prompts near-identical to training
prompts are left out of the other two parts; those near-identical to validation prompts are left out
of the held-out part, because the checkpoint and K are chosen on the validation part. Copies within
the training part are kept. General traffic is partly trained on and partly held out to measure
forgetting.

    split(run / "traffic/sequences", SplitConfig(), run / "split")["heldout"]     # ids
"""

import bisect
import itertools
import random
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NotRequired, TypedDict

from datasets import Dataset
from pydantic import BaseModel

from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.common.json_forms import read_form
from outrider.data.config import SplitConfig, further_answers
from outrider.data.sequences import load_sequences, log_order, session_names
from outrider.data.split.near_duplicates import SimilarPrompts
from outrider.data.split.slices import name_slices, write_slices

Part = Literal["train", "validation", "heldout"]
PARTS: tuple[Part, ...] = ("train", "validation", "heldout")
"""Parts of the customer's traffic. With general traffic, `parts.json` also has `general`."""

BEGAN_EARLIER = "session_began_in_an_earlier_part"
SEEN = {
    "train": "near_identical_to_a_training_prompt",
    "validation": "near_identical_to_a_validation_prompt",
}
"""Part with near-identical prompts -> reason for leaving a sequence out. The other reasons are
`BEGAN_EARLIER` and the names of limits, such as `max_train_sequences`."""

GENERAL: Final = "general"
PREFIX = "g"
"""Prefix of the ids of general sequences; other ids begin with a digit."""


class PartCounts(TypedDict):
    """Size of a part, and its first and last logged times; None if no time was logged."""

    sequences: int
    sessions: int
    tokens: int
    completion_tokens: int
    first_time: float | None
    last_time: float | None


class GeneralCounts(TypedDict):
    """How much general traffic there is, and how much of it is used."""

    sequences: int
    trained_on: int
    wanted: int
    """What `split.general_share` requires."""
    measured_on: int


class SplitSummary(TypedDict):
    """Counts of the parts, and of left-out rows by reason."""

    train: PartCounts
    validation: PartCounts
    heldout: PartCounts
    left_out: dict[str, int]
    general: NotRequired[GeneralCounts]


class SplitFile(TypedDict):
    """`parts.json`: the ids of each part in chronological order, and what was left out."""

    train: list[str]
    validation: list[str]
    heldout: list[str]
    general: NotRequired[list[str]]
    left_out: dict[str, str]
    """Reasons by id."""
    sessions: dict[str, str]
    """Sessions by id, where they begin after a pause in the logged session."""
    summary: SplitSummary


def split(
    sequences_dir: Path,
    split: SplitConfig,
    out_dir: Path,
    general_dir: Path | None = None,
    *,
    answers_up_to: int = 0,
) -> SplitFile:
    """Writes and returns `parts.json`.

    The slices of the whole traffic are written to slices.json in the same folder. `general_dir` is
    the table of general traffic (`add_general`). `answers_up_to` is the number of responses up to
    which the training part gets further answers later (features/answers.py), of which general
    traffic has its share, too.
    """
    table = load_sequences(sequences_dir)
    divided = divide_rows(table, split)
    ids = table["sequence_id"][:]
    logged = table["session"][:]
    rows_in_parts = sorted(row for part in PARTS for row in divided.parts[part])
    ids_in_parts = {part: [ids[row] for row in divided.parts[part]] for part in PARTS}
    result: SplitFile = {
        "train": ids_in_parts["train"],
        "validation": ids_in_parts["validation"],
        "heldout": ids_in_parts["heldout"],
        "left_out": {ids[row]: divided.left_out[row] for row in sorted(divided.left_out)},
        "sessions": {
            ids[row]: divided.sessions[row]
            for row in rows_in_parts
            if divided.sessions[row] != logged[row]
        },
        "summary": split_summary(table, divided),
    }
    slices = name_slices(table)
    if general_dir is not None:
        general = load_sequences(general_dir)
        trained = len(result["train"])
        add_general(
            parts=result,
            summary=result["summary"],
            customers=table,
            general=general,
            split=split,
            customers_trained=trained + further_answers(trained, answers_up_to),
        )
        slices["traffic"] = {"customer": ids, GENERAL: general["sequence_id"][:]}
    write_slices(slices, out_dir)
    write_json(Path(out_dir) / "parts.json", result)
    return result


def read_parts(split_dir: Path) -> dict[str, list[str]]:
    """Reads the ids of each part from `parts.json`."""
    written = _read_split(split_dir)
    parts = {
        "train": written.train,
        "validation": written.validation,
        "heldout": written.heldout,
        GENERAL: written.general,
    }
    return {part: ids for part, ids in parts.items() if ids is not None}


def read_sessions(split_dir: Path) -> dict[str, str]:
    """Reads the sessions that differ from the log's, by sequence id."""
    return _read_split(split_dir).sessions


class _Written(BaseModel):
    """`parts.json` as it is read; a window of `outrider adapt` has the training part alone."""

    train: list[str] | None = None
    validation: list[str] | None = None
    heldout: list[str] | None = None
    general: list[str] | None = None
    sessions: dict[str, str] = {}


def _read_split(split_dir: Path) -> _Written:
    path = Path(split_dir) / "parts.json"
    return read_form(_Written, path, f"delete {split_dir} and rerun the command")


def ids_of(parts: Mapping[str, list[str]]) -> list[str]:
    """Returns the ids of all parts: the sequences that are captured and checked."""
    return [name for part in (*PARTS, GENERAL) for name in parts.get(part, ())]


@dataclass(frozen=True)
class DividedRows:
    """A table's rows, divided into parts."""

    parts: dict[str, list[int]]
    """Rows of each part, in chronological order."""
    left_out: dict[int, str]
    """Why each of the other rows is not in any part."""
    sessions: list[str]
    """The session of every row."""


def divide_rows(table: Dataset, split: SplitConfig, drop_seen: bool = True) -> DividedRows:
    """Divides the rows into parts.

    `drop_seen` leaves out prompts near-identical to those of an earlier part, which costs 2 ms and
    20 kB of memory per prompt.
    """
    times = log_order(table["time"])
    sessions = session_names(table, times, split.session_gap_minutes)
    order = sorted(range(len(times)), key=lambda row: times[row])  # stable: ties keep log order
    parts, left_out = _by_time(order, sessions, times, split)
    limits = {
        "train": split.max_train_sequences,
        "validation": split.max_validation_sequences,
        "heldout": split.max_heldout_sequences,
    }
    prompts = table["prompt_text"]
    seen = dict[str, SimilarPrompts]()
    for part in PARTS:
        # In chronological order: a prompt stays in its first part, so that later parts are new to
        # the model.
        for earlier, similar in seen.items():
            dropped = {row for row in parts[part] if similar.holds(prompts[row])}
            left_out.update((row, SEEN[earlier]) for row in dropped)
            parts[part] = [row for row in parts[part] if row not in dropped]
        _sample(parts, part, limits[part], left_out)
        if drop_seen and part != PARTS[-1]:
            its_prompts = [prompts[row] for row in parts[part]]
            seen[part] = SimilarPrompts(its_prompts, split.near_duplicate_similarity, prompts)
    for part in PARTS:
        if not parts[part]:
            reasons = ", ".join(
                f"{reason} {count}" for reason, count in Counter(left_out.values()).most_common()
            )
            raise OutriderError(
                f"nothing is left for the {part} part ({len(times)} sequences; left out: "
                f"{reasons or 'none'}). Provide more traffic with times and conversation ids, "
                "change split.validation_fraction or split.heldout_fraction, or raise "
                "split.near_duplicate_similarity"
            )
    return DividedRows(parts, left_out, sessions)


def _by_time(
    order: list[int], sessions: list[str], times: list[tuple[float, int]], split: SplitConfig
) -> tuple[dict[str, list[int]], dict[int, str]]:
    first_times: dict[str, tuple[float, int]] = {}
    for row in order:
        first_times.setdefault(sessions[row], times[row])
    starts = list(first_times.values())  # one per session, in chronological order
    if len(starts) < len(PARTS):
        raise OutriderError(
            f"the traffic has {len(starts)} sessions; a split needs at least {len(PARTS)}: log"
            " session ids, or add traffic"
        )
    heldout = max(round(len(starts) * split.heldout_fraction), 1)
    validation = max(round(len(starts) * split.validation_fraction), 1)
    # A session belongs to the part in which it began. Its rows after the next cut are left out,
    # since they repeat its earlier turns.
    cuts = [starts[max(len(starts) - heldout - validation, 0)], starts[len(starts) - heldout]]
    parts: dict[str, list[int]] = {part: [] for part in PARTS}
    left_out = {}
    for row in order:
        of_session, of_row = (
            bisect.bisect_right(cuts, time) for time in (first_times[sessions[row]], times[row])
        )
        if of_session == of_row:
            parts[PARTS[of_row]].append(row)
        else:
            left_out[row] = BEGAN_EARLIER
    return parts, left_out


def _sample(
    parts: dict[str, list[int]], part: str, limit: int | None, left_out: dict[int, str]
) -> None:
    """Keeps a seeded sample of `limit` rows, still in chronological order."""
    rows = parts[part]
    if limit is None or len(rows) <= limit:
        return
    # Seeded by the part's name, so that a change of one limit does not change the other parts.
    sampled_rows = set(random.Random(f"0 {part}").sample(rows, limit))
    parts[part] = [row for row in rows if row in sampled_rows]
    left_out.update((row, f"max_{part}_sequences") for row in rows if row not in sampled_rows)


def split_summary(table: Dataset, divided: DividedRows) -> SplitSummary:
    """Returns the counts and times of each part, and the reasons for left-out rows."""
    parts = divided.parts
    left_out = divided.left_out
    sessions = divided.sessions
    starts = table["completion_start"][:]
    times = table["time"][:]
    lengths = [len(ids) for ids in table["token_ids"]]
    described: dict[str, PartCounts] = {}
    for part, rows in parts.items():
        logged = [times[row] for row in rows if times[row] is not None]
        tokens = sum(lengths[row] for row in rows)
        prompt_tokens = sum(starts[row] for row in rows)
        described[part] = {
            "sequences": len(rows),
            "sessions": len({sessions[row] for row in rows}),
            "tokens": tokens,
            "completion_tokens": tokens - prompt_tokens,
            "first_time": logged[0] if logged else None,
            "last_time": logged[-1] if logged else None,
        }
    return {
        "train": described["train"],
        "validation": described["validation"],
        "heldout": described["heldout"],
        "left_out": dict(Counter(left_out.values()).most_common()),
    }


def add_general(
    parts: SplitFile,
    summary: SplitSummary,
    *,
    customers: Dataset,
    general: Dataset,
    split: SplitConfig,
    customers_trained: int,
) -> None:
    """Adds general sequences to the training part and to a separate part.

    They make up `split.general_share` of the training part, without sessions or near-identical
    prompts of the customer's later parts, since general traffic may include the customer's. The
    latest are held out as `general` unless near-identical to training prompts; their sessions are
    not trained on. `customers_trained` is the number of the customer's sequences that are trained
    on. Counts are added to `summary`.
    """
    ids = general["sequence_id"][:]
    prompts = general["prompt_text"][:]
    times = log_order(general["time"])
    sessions = session_names(general, times, split.session_gap_minutes)
    order = _by_session(sessions, times)
    # At most a fifth, so that most general traffic is left to train on.
    heldout_count = max(1, min(split.max_general_sequences, len(order) // 5))
    heldout = order[-heldout_count:]
    straddling = {sessions[row] for row in heldout}
    rest = [row for row in order[:-heldout_count] if sessions[row] not in straddling]
    # General sequences are `share` of the whole training part, the customer's the remainder.
    share = split.general_share
    general_count = round(share / (1 - share) * customers_trained)
    logged = general["session"][:]
    is_measured = _measured_by(parts, customers, split.near_duplicate_similarity)
    # Lazy, since a comparison with all measured prompts takes 2 ms and only `general_count` rows
    # are needed.
    free = (
        row
        for row in random.Random("0 general").sample(rest, len(rest))
        if not is_measured(logged[row], prompts[row])
    )
    chosen = list(itertools.islice(free, general_count))
    row_of = {sequence_id: row for row, sequence_id in enumerate(customers["sequence_id"])}
    customers_prompts = customers["prompt_text"][:]
    trained = [customers_prompts[row_of[sequence_id]] for sequence_id in parts["train"]]
    trained += [prompts[row] for row in chosen]
    seen = SimilarPrompts(
        trained, split.near_duplicate_similarity, [*trained, *(prompts[row] for row in heldout)]
    )
    measured = [row for row in heldout if not seen.holds(prompts[row])]
    if not measured:
        raise OutriderError(
            f"traffic.general: none of its {len(ids)} sequences is left to measure on: the latest "
            "are all near-identical to training prompts; provide more or other general traffic, or "
            "remove traffic.general"
        )
    parts["train"] = [*parts["train"], *(ids[row] for row in sorted(chosen))]
    parts[GENERAL] = [ids[row] for row in measured]
    parts.setdefault("sessions", {}).update(
        (ids[row], sessions[row]) for row in measured if sessions[row] != logged[row]
    )
    summary[GENERAL] = {
        "sequences": len(ids),
        "trained_on": len(chosen),
        "wanted": general_count,
        "measured_on": len(measured),
    }


def _measured_by(
    parts: SplitFile, customers: Dataset, similarity: float
) -> Callable[[str, str], bool]:
    """Whether a session or a prompt is also in the customer's validation or held-out part."""
    row_of = {sequence_id: row for row, sequence_id in enumerate(customers["sequence_id"])}
    prompts = customers["prompt_text"][:]
    sessions = customers["session"][:]
    later = [row_of[sequence_id] for part in PARTS[1:] for sequence_id in parts[part]]
    measured_sessions = {sessions[row] for row in later}
    measured_prompts = SimilarPrompts([prompts[row] for row in later], similarity, prompts)
    return lambda session, prompt: session in measured_sessions or measured_prompts.holds(prompt)


def _by_session(sessions: list[str], times: list[tuple[float, int]]) -> list[int]:
    """The rows by their session's first time; a session's rows are consecutive."""
    first_times: dict[str, tuple[float, int]] = {}
    for row in sorted(range(len(times)), key=times.__getitem__):
        first_times.setdefault(sessions[row], times[row])
    return sorted(
        range(len(times)), key=lambda row: (first_times[sessions[row]], sessions[row], times[row])
    )
