"""`outrider export`: writes the verified bundle of an evaluated speculator."""

import sys
from pathlib import Path
from typing import Annotated

import outrider
from outrider.cli.options import Flag, Overrides, RecipeName, ResultAsJson, Runs
from outrider.cli.printing import print_run_summary


def export_speculator(
    recipe: RecipeName,
    *overrides: Overrides,
    to: str,
    runs: Runs = Path("runs"),
    force: Annotated[bool, Flag] = False,
    as_json: ResultAsJson = False,
) -> int:
    """Write, verify and copy the bundle of an evaluated speculator.

    Parameters
    ----------
    to
        Destination: a directory, an fsspec URL such as s3://bucket/prefix, or hf://OWNER/NAME for
        the Hugging Face Hub.
    force
        Export even a speculator that is not better than the base.
    """
    run = outrider.open(recipe, *overrides, runs=runs)
    results = run.export(to, force)
    print(f"bundle copied to {to}", file=sys.stderr)
    return print_run_summary(run, results, bundle=to, as_json=as_json)
