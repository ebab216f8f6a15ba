"""Converts logs to a table of token sequences and records every reject.

Writes `sequences/` (an Arrow `datasets` table), `rejects.jsonl` (file, line, reason, detail; no
customer text) and `summary.json` into one folder, each atomically, the summary last. They are
readable only by their owner.

The main process splits the log into chunks of records; workers, one per core, turn each chunk into
a part (chunks.py). Parts are kept in `.parts/` until the table is assembled, with a digest of
everything they depend on, so that a rerun after an interruption makes only the missing parts.
Memory use does not grow with the log.

    ingest(target_dir, TrafficConfig(path="logs/"), out_dir)["exchanges"]
"""

import dataclasses
import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from outrider.common.errors import OutriderError
from outrider.common.files import publish, read_json, write_json
from outrider.common.fingerprint import path_digest, resume_or_clear
from outrider.common.inert import printable
from outrider.data.config import PrivacyConfig, TrafficConfig
from outrider.data.exchange import (
    ASIDE,
    DELETES,
    NOT_GENERATIONS,
    Record,
    Reject,
)
from outrider.data.files.sources import LogFile, log_files, summary_of
from outrider.data.formats import FORMATS, JOINING, UNKNOWN, files_by_format, read_records
from outrider.data.formats.rows.named_fields import use_field_paths
from outrider.data.ingest.arrow_files import columns_of
from outrider.data.ingest.chunks import (
    NOT_LOGGED,
    Tally,
    Work,
    chunks_of,
    make_parts,
    model_label,
    part_path,
)
from outrider.data.ingest.copies import SetAside, copies_in
from outrider.data.ingest.field_names import unread_fields
from outrider.data.ingest.incomplete import incomplete_in
from outrider.data.ingest.table import publish_table
from outrider.data.ingest.traffic_profile import profile
from outrider.data.privacy.guard import KEY_FILE, LEFT_OUT, PRIVACY_FILE, PrivacyTally, privacy_key

PARTS = ".parts"
PARTS_INPUTS = ".parts.json"
"""Folder of the parts, and file with the digest of everything that they depend on."""

PARTS_VERSION = 30
"""Version of the parts. Raise it if the same log gives different parts: if a format accepts
different rows, or if sequences, rejects, surrogates or `chunks.SCHEMA` change. Parts of an
interrupted ingest are then made again. Also raise the version of the ingest stage
(pipeline/stages/ingest.py), which covers finished ingests."""

REJECTS = "rejects.jsonl"

TOKENIZER_FILES = (
    *("config.json", "generation_config.json", "special_tokens_map.json"),
    *("tokenizer*", "chat_template*"),
)


def ingest(
    target_dir: Path,
    traffic: TrafficConfig,
    out_dir: Path,
    *,
    workers: int | None = None,
    privacy: PrivacyConfig | None = None,
    hard_labels: bool = True,
    generation: Mapping[str, Any] | None = None,
    prefix: str = "",
    is_slice: bool = False,
    rows_per_file: int | None = None,
    problems: list[str] | None = None,
) -> dict[str, Any]:
    """Ingests `traffic.path` for the target in `target_dir`; returns the summary.

    Sequence ids begin with `prefix`. `workers` is the number of processes (0: only this one;
    default: one per core, but 0 for a small log). If `privacy` is on, findings are counted in
    `privacy.json`. Without `hard_labels`, responses with a constraint are set aside
    (`SequenceBuilder`). `generation` has the engine's arguments about sampling
    (`tokens.sampling_defaults`). With `is_slice`, the log is a slice of one that is still being
    written (log_tail.py), so rows without their other half do not count as damage. `rows_per_file`
    limits the rows to read from each file. If `problems` is given, errors that would stop a run are
    appended to it instead of being raised; a log without rows always raises an error.
    """
    not_read: list[str] = []
    found_files = log_files(traffic.path, not_read)
    limited = [dataclasses.replace(file, limit=rows_per_file) for file in found_files]
    paths = traffic.fields.paths()
    with use_field_paths(paths):
        files_of = files_by_format(limited, traffic.format, not_read)
    files = [file for of_format in files_of.values() for file in of_format]
    target_dir = Path(target_dir)
    out_dir = Path(out_dir)
    out_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    models = [traffic.model] if isinstance(traffic.model, str) else traffic.model
    privacy = privacy or PrivacyConfig()
    key = privacy_key(privacy, out_dir / KEY_FILE)
    parts_dir = _parts_dir(
        out_dir=out_dir,
        files=files,
        traffic=traffic,
        privacy=privacy,
        key=key,
        target_dir=target_dir,
        hard_labels=hard_labels,
        generation=generation,
    )
    file_numbers = {file.name: f"{prefix}{number}" for number, file in enumerate(files)}
    work = Work(
        target_dir=target_dir,
        models=models,
        privacy=privacy,
        key=key,
        parts_dir=parts_dir,
        file_numbers=file_numbers,
        fields=paths,
        server=traffic.server,
        hard_labels=hard_labels,
        generation=generation,
    )
    console = Console(stderr=True, highlight=False)
    if not_read:
        line = printable(summary_of(not_read))
        console.print(f"traffic.path: {line}", markup=False, soft_wrap=True)
    with use_field_paths(paths), console.status("ingest") as status:
        chunks = chunks_of(_records(files_of, out_dir))
        made = make_parts(chunks, work, _workers(files) if workers is None else workers)
        records: list[int] = []
        for of_part in made:
            records.append(of_part)
            status.update(f"ingest: {sum(records):,} records")
    parts = [part_path(parts_dir, number) for number in range(len(records))]
    is_cut = is_slice or any(file.limit and file.is_read_enough() for file in files)
    tables = [part.with_suffix(".arrow") for part in parts]
    aside = _joined(incomplete_in(tables), copies_in(tables))
    tally, privacy_tally = _sums(parts, aside, out_dir / REJECTS, is_cut)
    if privacy.mode != "off":
        privacy_tally.write(privacy, out_dir / PRIVACY_FILE)
        console.print(privacy_tally.line(privacy), soft_wrap=True)
    try:
        check_ingest(tally, traffic, files, out_dir / REJECTS if problems is None else None)
    except OutriderError as error:
        if problems is None or not tally.rows:
            raise
        problems.append(str(error))
    publish_table(tables, aside, out_dir / "sequences")
    summary = {
        "files": [file.name for file in files],
        "not_read": not_read,
        "names": list(next((file.names for file in files if file.names), ())),
        **tally.summary(),
        **profile(out_dir / "sequences", target_dir, traffic.tpot_ms),
    }
    # A slice may be too short to have a field, and general traffic may be another application's.
    is_whole = tally.exchanges and not is_slice and not prefix
    unread = unread_fields(paths, summary) if is_whole else []
    if unread and problems is None:
        raise OutriderError("\n".join(unread))
    if problems is not None:
        problems += unread
    write_json(out_dir / "summary.json", summary)
    # Last: with the summary written, the parts are not needed to resume.
    shutil.rmtree(parts_dir)
    (out_dir / PARTS_INPUTS).unlink()
    return summary


def _joined(incomplete: SetAside, copies: SetAside) -> SetAside:
    """Returns the rows to set aside; a copy of an incomplete row is a copy."""
    parts = incomplete.keys() | copies.keys()
    return {part: {**incomplete.get(part, {}), **copies.get(part, {})} for part in parts}


def _sums(
    parts: list[Path], aside: SetAside, rejects_path: Path, is_cut: bool
) -> tuple[Tally, PrivacyTally]:
    """Adds up the counts of all parts and writes their rejects, with the rows to set aside."""
    tally = Tally()
    privacy_tally = PrivacyTally()
    with publish(rejects_path) as temporary:
        temporary.touch(mode=0o600)
        with temporary.open("w", encoding="utf-8") as rejects:
            for path in parts:
                part = read_json(path)
                counted = Tally.model_validate(part["tally"])
                # A cut log ends between the rows of a pair; their other half is not lost but not
                # written yet.
                if is_cut and JOINING & counted.formats.keys():
                    counted.excuse_halves()
                of_part = _aside_of(path.with_suffix(".arrow"), aside)
                for row, reject in of_part:
                    counted.set_aside(row, reject["reason"])
                part["rejects"] += [reject for _, reject in of_part]
                tally += counted
                privacy_tally += PrivacyTally.model_validate(part["privacy"])
                rejects.writelines(
                    json.dumps(reject, ensure_ascii=False) + "\n" for reject in part["rejects"]
                )
    if tally.lost():
        raise AssertionError(
            f"{tally.lost()} of {tally.rows} rows are neither exchanges nor rejects"
        )
    return tally, privacy_tally


def _aside_of(part: Path, aside: SetAside) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Returns a part's rows to set aside: what `Tally` counted, and the line for the rejects."""
    reasons = aside.get(part, {})
    if not reasons:
        return []
    columns = ["file", "line", "model", "prompt_agrees", "completion_agrees"]
    rows = columns_of(part, columns).take(list(reasons)).to_pylist()
    return [
        (row, {"file": row["file"], "line": row["line"], "reason": reason, "detail": detail})
        for row, (reason, detail) in zip(rows, reasons.values(), strict=True)
    ]


def _records(
    files_of: dict[str, list[LogFile]], scratch: Path
) -> Iterator[tuple[str, Record | Reject]]:
    """Yields records with their format; checks that no row is lost."""
    for name, its_files in files_of.items():
        used = 0
        for item in read_records(name, its_files, scratch):
            used += item.rows
            yield name, item
        read = sum(file.rows for file in its_files)
        if used != read:
            raise AssertionError(
                f"format {name}: {read} rows read, {used} in its records and rejects"
            )


def _parts_dir(
    *,
    out_dir: Path,
    files: list[LogFile],
    traffic: TrafficConfig,
    privacy: PrivacyConfig,
    key: bytes,
    target_dir: Path,
    hard_labels: bool,
    generation: Mapping[str, Any] | None,
) -> Path:
    """Returns the folder of parts; keeps those made from the same inputs."""
    tokenizer_files = (path for pattern in TOKENIZER_FILES for path in target_dir.glob(pattern))
    target_digests = {path.name: path_digest(path) for path in tokenizer_files if path.is_file()}
    inputs = {
        "files": [file.identity() for file in files],
        "traffic": [traffic.format, traffic.model, traffic.server, traffic.fields.paths()],
        "privacy": privacy.model_dump(mode="json"),
        "privacy key": hashlib.sha256(key).hexdigest(),
        "target": target_digests,
        "hard labels": hard_labels,
        "generation": dict(generation or {}),
        "version": PARTS_VERSION,
    }
    parts_dir = out_dir / PARTS
    resume_or_clear(out_dir / PARTS_INPUTS, inputs, [parts_dir])
    parts_dir.mkdir(exist_ok=True, mode=0o700)
    return parts_dir


def _workers(files: list[LogFile]) -> int:
    # This process alone is faster for a small log.
    is_small = sum(file.size() for file in files) <= 8 * 2**20
    return 0 if is_small else len(os.sched_getaffinity(0))


def _first_detail(rejects_path: Path | None, reason: str) -> str:
    """Returns what the first row rejected for `reason` has, after a colon, or nothing."""
    if rejects_path is None:
        return ""
    with rejects_path.open(encoding="utf-8") as rejects:
        details = (
            reject["detail"] for reject in map(json.loads, rejects) if reject["reason"] == reason
        )
        detail = next(details, "")
    return f": {detail}" if detail else ""


NEXT_STEP = (
    f"Outrider reads {', '.join(FORMATS)} (docs/how-to/log-formats.md). To convert another log,"
    ' write one line per exchange: {"messages": [{"role": "user", "content": "..."}, {"role":'
    ' "assistant", "reasoning_content": "...", "content": "..."}]}'
)
"""What to do with a log of an unknown format."""


def check_ingest(
    tally: Tally, traffic: TrafficConfig, files: list[LogFile], rejects_path: Path | None = None
) -> None:
    """Raises an `OutriderError` if a log cannot be trained on."""
    where = files[0].name if len(files) == 1 else f"{len(files)} files, the first {files[0].name}"
    if not tally.rows:
        raise OutriderError(f"{where}: no rows; traffic.path must name a log with rows")
    reasons = ", ".join(f"{reason} {count}" for reason, count in tally.rejects.most_common(5))
    counts = f"{tally.rejects.total()} of {tally.rows} rows rejected ({reasons})"
    counts += f"; each with its line in {rejects_path}" if rejects_path else ""
    if not tally.exchanges and tally.formats[UNKNOWN]:
        what = next((": ".join(file.unknown) for file in files if file.unknown), "")
        raise OutriderError(f"{where}: no usable row: {what}. {counts}. {NEXT_STEP}")
    if tally.rejects[DELETES]:
        why = _first_detail(rejects_path, DELETES)
        raise OutriderError(
            f"{where}: {tally.rejects[DELETES]} of {tally.rows} rows are changes that delete rows,"
            f" whose texts may still be in the log{why}"
        )
    if not tally.exchanges:
        why = _first_detail(rejects_path, tally.rejects.most_common(1)[0][0])
        raise OutriderError(
            f"{where}: no usable row{why}. {counts}; raising traffic.max_reject_fraction does not"
            " help"
        )
    generations = tally.exchanges + sum(
        count for reason, count in tally.rejects.items() if reason not in NOT_GENERATIONS
    )
    other_share = tally.not_generations / (tally.not_generations + generations)
    # Endpoints also log health checks and failures, but a log of mostly these is the wrong file.
    if other_share > max(0.5, traffic.max_reject_fraction):
        raise OutriderError(
            f"{where}: {other_share:.0%} of the requests failed or are no chat or text completions:"
            f" {counts}. traffic.path must name the log of the endpoint's generations; if this is"
            f" it, set traffic.max_reject_fraction = {math.ceil(100 * other_share) / 100:g}"
        )
    damaged = sum(
        count for reason, count in tally.rejects.items() if reason not in ASIDE | LEFT_OUT
    )
    fraction = damaged / (tally.exchanges + damaged)
    if fraction > traffic.max_reject_fraction:
        raise OutriderError(
            f"{where}: {counts}. That is {fraction:.1%}, above traffic.max_reject_fraction = "
            f"{traffic.max_reject_fraction:g}; correct the log or raise that key"
        )
    if traffic.model is None:
        _check_one_model(tally, where)


def _check_one_model(tally: Tally, where: str) -> None:
    """Raises an `OutriderError` if the exchanges come from several models."""
    logged = [(name, n) for name, n in tally.models.most_common() if name != NOT_LOGGED]
    model_names = {model_label(name) for name, _ in logged}
    if len(model_names) > 1:
        models = ", ".join(f"{name} {count}" for name, count in logged)
        raise OutriderError(
            f"{where}: the exchanges come from {len(model_names)} models ({models}); a speculator "
            "is trained for one. Set traffic.model to it (several names of one model as a list)"
        )
