"""What a recipe's log contains and what training on it would cost, for `inspect-traffic`.

    found, samples = inspect_recipe(recipe, run, rows_per_file=None, samples=2)

The log is ingested into a temporary folder (below TMPDIR, about as large as the log unpacked),
unless the recipe's run has an up-to-date ingest of it.
"""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from rich.text import Text

from outrider.common.files import read_json
from outrider.data.ingest.ingest import TOKENIZER_FILES
from outrider.data.ingest.inspection import inspect, inspect_ingested
from outrider.data.ingest.mask_view import marked
from outrider.data.ingest.traffic_facts import printable
from outrider.data.sequences import load_sequences
from outrider.pipeline.kinds import with_kinds
from outrider.pipeline.plan.hours import rates_of
from outrider.pipeline.plan.training_cost import features_cost
from outrider.pipeline.plan.units import duration
from outrider.pipeline.preflight import check_traffic, local_target
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.registry import STAGES


def inspect_recipe(
    recipe: Recipe, run: RunDirectory, rows_per_file: int | None, samples: int
) -> tuple[dict[str, Any], list[Text]]:
    """The findings as JSON without customer text, and a few sequences, which are customer text."""
    check_traffic(recipe)
    # transformers would warn that torch is missing, which tokenizers do not need.
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    with tempfile.TemporaryDirectory(prefix="inspect-traffic-") as scratch:
        target = local_target(recipe)
        if target and not rows_per_file and _is_ingested(recipe, run):
            traffic_dir, source = run.traffic, str(run.traffic)
            found = inspect_ingested(traffic_dir, recipe.split)
        else:
            target = target or recipe.target.fetch(TOKENIZER_FILES, Path(scratch) / "target")
            traffic_dir, source = Path(scratch) / "traffic", None
            found = inspect(
                target, recipe.traffic, recipe.split, traffic_dir, rows_per_file, recipe.privacy
            )
        found = {
            "recipe": recipe.name,
            "target": recipe.target.model,
            "ingested_in": source,
            "rows_per_file": rows_per_file,
            **found,
            "predicted": _predicted(found, recipe, target),
        }
        return found, _samples(traffic_dir / "sequences", target, min(samples, found["exchanges"]))


def _is_ingested(recipe: Recipe, run: RunDirectory) -> bool:
    return run.read_record("ingest") is not None and STAGES["ingest"].state(run, recipe, {}).done


def _predicted(found: dict[str, Any], recipe: Recipe, target: Path) -> dict[str, Any]:
    """Cost of the capture: of what the split keeps, or of everything without a split."""
    everything = found["prompt_tokens"] + found["completion_tokens"]
    tokens = found["split"]["tokens"] if found["split"] else everything
    config, recipe = read_json(target / "config.json"), with_kinds(recipe, target)
    cost, rates = features_cost(tokens, recipe, config), rates_of(recipe, config)
    if rates:
        seconds, rate = tokens / rates.capture_tokens_per_s, rates.capture_tokens_per_s
        cost["text"] += f", about {duration(seconds)} at {rate:,g} tokens/s ({rates.source})"
    return cost


def _samples(sequences_dir: Path, target: Path, count: int) -> list[Text]:
    """`count` sequences, evenly spread over the log."""
    if not count:
        return []
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(target / "tokenizer.json"))
    table = load_sequences(sequences_dir)
    shown = []
    for row in table.select(np.linspace(0, len(table) - 1, count, dtype=int)):
        title = f"sequence {row['sequence_id']}: {row['fidelity']}, "
        title += f"finish_reason {row['finish_reason']}, temperature {row['temperature']:g}, "
        title += f"tenant {printable(row['tenant']) or 'not logged'}\n"
        sequence = marked(tokenizer, row["token_ids"], row["completion_start"])
        shown.append(Text.assemble((title, "bold"), sequence))
    return shown
