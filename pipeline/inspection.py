"""Log contents and training cost, for `outrider inspect` and `outrider init`.

    found, samples = inspect_recipe(recipe, rows_per_file=None, samples=2)
    print_inspection(found, Console())

The log is ingested into a temporary folder under TMPDIR, which grows to about the size of the
uncompressed log.
"""

import logging
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.common.errors import OutriderError
from outrider.common.inert import printable
from outrider.common.process_tree import ProcessTree, changed_environment
from outrider.data.ingest.ingest import TOKENIZER_FILES
from outrider.data.ingest.inspection import format_mask, inspect_log
from outrider.data.ingest.traffic_facts import date, pluralize, traffic_facts
from outrider.data.ingest.traffic_profile import QUANTILES
from outrider.data.sequences import load_sequences
from outrider.data.split.split import PARTS
from outrider.eval.report.formatting import duration
from outrider.pipeline.paths import check_log_paths
from outrider.pipeline.plan.hours import rates_of
from outrider.pipeline.plan.training_cost import card_here, expected_power, features_cost
from outrider.pipeline.preflight import local_target
from outrider.pipeline.recipe.for_target import resolve_for_target
from outrider.pipeline.recipe.recipe import Recipe
from outrider.speculators.checkpoints.model_config import read_config

logger = logging.getLogger(__name__)

COUNTS = 1, 30, 60, 125, 250, 500, 1050, 2100, 4008
LENGTHS = 1.0, 1.588, 1.804, 1.927, 2.037, 2.112, 2.190, 2.263, 2.357
"""Tokens per step after training on `COUNTS` responses (benchmarks/results/smollm2.md).

That one response gives nothing is an assumption."""


def inspect_recipe(
    recipe: Recipe, rows_per_file: int | None, samples: int
) -> tuple[dict[str, Any], list[Text]]:
    """Returns findings without customer text, and sample sequences, which contain it."""
    check_log_paths(recipe)
    # transformers would warn that torch is missing, which tokenizers do not need.
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    # The tree ends the workers and removes the folder, even if this process is killed.
    with (
        tempfile.TemporaryDirectory(prefix="outrider-inspect-") as scratch,
        ProcessTree(Path(scratch)) as tree,
        changed_environment(tree.environment),
    ):
        target = local_target(recipe)
        traffic_dir = Path(scratch) / "traffic"
        target = target or recipe.target.fetch(TOKENIZER_FILES, Path(scratch) / "target")
        counts = inspect_log(
            target_dir=target,
            traffic=recipe.traffic,
            split=recipe.split,
            scratch=traffic_dir,
            rows_per_file=rows_per_file,
            privacy=recipe.privacy,
            hard_labels=recipe.speculator.hard_labels,
            generation=recipe.serving.engine.generation,
        )
        description = {
            "recipe": recipe.name,
            "target": recipe.target.model,
            "rows_per_file": rows_per_file,
            **counts,
            "predicted": _predicted(counts, recipe, target),
            "lookup": _lookup(counts, recipe, Path(scratch)),
        }
        shown = min(samples, counts["exchanges"])
        return description, _samples(traffic_dir / "sequences", target, shown)


def _predicted(log: dict[str, Any], recipe: Recipe, target: Path) -> dict[str, Any]:
    """Cost of capturing the split, or the whole log if unsplit."""
    # Without a split (too few sessions), the whole log is priced.
    everything = log["prompt_tokens"] + log["completion_tokens"]
    tokens = log["split"]["tokens"] if log["split"] else everything
    config = read_config(target / "config.json")
    recipe, notes = resolve_for_target(recipe, target)
    for note in notes:
        logger.info("%s", note)
    cost = features_cost(tokens, recipe, config)
    card, no_hours = card_here()
    rates = rates_of(recipe, config, card)
    if rates and no_hours is None:
        seconds = tokens / rates.capture_tokens_per_s
        rate = rates.capture_tokens_per_s
        cost["text"] += f", about {duration(seconds)} at {rate:,g} tokens/s ({rates.source})"
    if log["split"] and not log["wrong_target"]:
        cost["gain"] = gain(log["split"]["train"]["sequences"])
        cost["power"] = expected_power(recipe, log["split"], log)
    return cost


def _lookup(log: Mapping[str, Any], recipe: Recipe, scratch: Path) -> dict[str, Any]:
    """The free answer (eval/free_answer.py), or why there is none."""
    if log["problems"] or log["wrong_target"] or not log["exchanges"]:
        return {"skipped": "replayed after the problems of the log are fixed"}
    # Slow to import, and not needed to find what has to be fixed.
    from outrider.eval.free_answer import free_answer, lookup_advice

    logger.info("replaying what lookup would deliver: up to a minute")
    table = load_sequences(scratch / "traffic" / "sequences")
    try:
        answer = free_answer(
            table=table,
            split=recipe.split,
            engine=recipe.serving.engine,
            scratch=scratch / "lookup",
        )
    except OutriderError as error:
        return {"skipped": str(error)}
    return {**answer, "advice": lookup_advice(answer) if answer["lookups"] else None}


def gain(responses: int) -> str:
    """Estimates from the learning curve what training on `responses` responses gives.

    The curve is SmolLM2's (docs/tutorials/own-logs.md), interpolated over the logarithm.
    """
    length = np.interp(np.log(max(responses, 1)), np.log(COUNTS), LENGTHS)
    return (
        f"{responses:,} responses; on a real language model, this many gave about"
        f" {(length - 1) / (LENGTHS[-1] - 1):.0%} of the gain over no speculation of {COUNTS[-1]:,}"
    )


def _samples(sequences_dir: Path, target: Path, count: int) -> list[Text]:
    """Formats `count` sequences, evenly spread over the log."""
    if not count:
        return []
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    table = load_sequences(sequences_dir)
    shown = []
    for row in table.select(np.linspace(0, len(table) - 1, count, dtype=int)):
        title = (
            f"sequence {row['sequence_id']}: {row['fidelity']},"
            f" finish_reason {row['finish_reason']}, temperature {row['temperature']:g},"
            f" tenant {printable(row['tenant']) or 'not logged'}\n"
        )
        sequence = format_mask(tokenizer, row["token_ids"], row["completion_start"])
        shown.append(Text.assemble((title, "bold"), sequence))
    return shown


def print_inspection(log: Mapping[str, Any], console: Console) -> None:
    """Prints the findings; names from the log are never parsed as markup."""
    print_wrong_target(log, console)
    size = f"{log['rows']:,} rows, {log['exchanges']:,} exchanges"
    title = f"{log['recipe']}: {pluralize(log['files'], 'file')}, {size}"
    console.print(Text(title, "bold"), soft_wrap=True)
    if log["rows_per_file"]:
        limit = (
            f"--first: only the first {log['rows_per_file']:,} rows of each file were read. All"
            " figures, including cost and split, are for these rows; the last exchange may be"
            " incomplete if it has several rows."
        )
        console.print(Text(limit, "yellow"))
    print_facts(log, console)
    if log["rejects"]:
        _print_rejects(log, console)
    if log["split"]:
        console.print(_split(log["split"]))
    console.print(_lengths(log["lengths"]))
    print_lookup(log["lookup"], console)


def print_wrong_target(log: Mapping[str, Any], console: Console) -> None:
    """Prints that another model wrote the log, if it probably did."""
    if wrong := log["wrong_target"]:
        console.print(Text.assemble(("warning: ", "bold red"), wrong), soft_wrap=True)


def print_facts(log: Mapping[str, Any], console: Console) -> None:
    """Prints one line per fact about the log, then advice."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    scope = "the sequences that the split keeps" if log["split"] else "the whole log"
    predicted = log["predicted"]
    capture = f"{predicted['text']}; for {scope}"
    estimates = {"training": predicted.get("gain"), "verdict": predicted.get("power")}
    learned = [(name, text) for name, text in estimates.items() if text]
    for name, text in (
        ("target", log["target"]),
        *traffic_facts(log),
        ("capture", capture),
        *learned,
    ):
        grid.add_row(name, Text(printable(text)))
    console.print(grid)
    for text in log["advice"]:
        console.print(Text.assemble(("advice: ", "bold yellow"), text))


def print_lookup(answer: Mapping[str, Any], console: Console) -> None:
    """Prints tokens per step that lookup would deliver, and one sentence of advice."""
    title = "what lookup would deliver without training: tokens per step with K drafts"
    if "skipped" in answer:
        console.print(Text.assemble((f"{title}: ", "bold"), answer["skipped"]), soft_wrap=True)
        return
    rows = []
    for lookup in answer["lookups"].values():
        for prompts in ("new", "repeated"):
            if prompts in lookup:
                lengths = [f"{length:.2f}" for length in lookup[prompts]["by_k"]]
                responses = f"{lookup[prompts]['responses']:,}"
                rows.append((lookup["in_words"], prompts, responses, *lengths))
    if rows:
        columns = ("", "prompts", "n", *(f"K={k}" for k in range(1, len(lengths) + 1)))
        caption = _replayed(answer)
        console.print(_table(title, columns, rows, caption=caption, caption_justify="left"))
    for reason in answer["missing"].values():
        console.print(Text(reason, "yellow"))
    if answer["lookups"]:
        console.print(Text.assemble(("advice: ", "bold yellow"), answer["advice"]))


def _replayed(answer: Mapping[str, Any]) -> str:
    """What was replayed, and against which responses."""
    replayed, history = (
        f"{part['responses']:,}"
        if part["responses"] == part["of"]
        else f"newest {part['responses']:,} of {part['of']:,}"
        for part in (answer["replayed"], answer["history"])
    )
    share = f"{answer['repeated_share']:.0%}" if answer["repeated_share"] else "None"
    return (
        f"The {replayed} later responses, replayed with the {history} earlier ones as history;"
        f" split by {answer['order']}. {share} of the later prompts are near-identical to earlier"
        " ones (repeated)."
    )


def _print_rejects(log: Mapping[str, Any], console: Console) -> None:
    """Prints the counts of rejects, and below them the first detail of each reason in full."""
    rows = []
    details = []
    for reason, count in log["rejects"].items():
        example = log["reject_examples"][reason]
        rows.append((reason, f"{count:,}", Text(printable(example["place"]))))
        if example["detail"]:
            details.append((reason, printable(example["detail"])))
    console.print(_table("rejects", ("reason", "rows", "first at"), rows))
    for reason, detail in details:
        console.print(Text.assemble((f"{reason}: ", "bold"), detail), soft_wrap=True)


def _split(split: Mapping[str, Any]) -> Table:
    left_out = [f"{reason} {count:,}" for reason, count in split["left_out"].items()]
    caption = f"left out: {', '.join(left_out) or 'nothing'}"
    if not split["prompts_compared"]:
        caption += "; prompts were not compared, so near duplicates are still included"
    rows = []
    for part in PARTS:
        row = split[part]
        numbers = (row[key] for key in ("sessions", "sequences", "tokens", "completion_tokens"))
        since = "not logged" if row["first_time"] is None else date(row["first_time"])
        rows.append((part, *(f"{number:,}" for number in numbers), since))
    columns = ("", "sessions", "sequences", "tokens", "trained on", "from")
    return _table("split", columns, rows, caption=caption, caption_justify="left")


def _lengths(lengths: Mapping[str, Any]) -> Table:
    columns = ("n", *QUANTILES, "max")
    rows = [
        (name, *(f"{row[key]:,}" for key in columns)) for name, row in lengths.items() if row["n"]
    ]
    return _table("lengths in tokens", ("", *columns), rows)


def _table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str | Text]], **options: Any
) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        **options,
    )
    for column in columns:
        text = column in ("", "reason", "first at", "prompts")
        table.add_column(column, justify="left" if text else "right", no_wrap=not text)
    for row in rows:
        table.add_row(*row)
    return table
