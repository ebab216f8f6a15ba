"""Measures a running vLLM server on a run's held-out traffic: `outrider eval --server`.

results = measure_server(run, recipe, "http://localhost:8000")   # after ingest and split
"""

from typing import Any

from rich.console import Console

from outrider.common.process_tree import stopped_by_signal
from outrider.data.sequences import load_sequences
from outrider.eval.bench.endpoint import measure_endpoint
from outrider.eval.bench.prompts import customers_sampling, evaluation_prompts
from outrider.eval.bench.request_fields import request_fields
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.sources import has_quarantine, parts_in_use
from outrider.serving.config import TargetConfig


def measure_server(run: RunDirectory, recipe: Recipe, url: str) -> dict[str, Any]:
    """Measures the server's acceptance (from /metrics) and speed; gives no verdict."""
    console = Console(stderr=True, highlight=False)
    if not has_quarantine(run):
        console.print(
            f"[yellow]warning[/] {run.features}: nothing is captured yet, so off-policy "
            "held-out sequences are measured too; run `outrider train RECIPE --stages capture` "
            "first to leave them out",
            soft_wrap=True,
        )
    # The same prompts and sampling as in the timed blocks of the run's evaluation.
    heldout = load_sequences(run.sequences, parts_in_use(run)["heldout"])
    _, prompts = evaluation_prompts(heldout, recipe.eval, recipe.serving)
    with stopped_by_signal():
        target = TargetConfig(model=str(recipe.target.training_directory()))
        return measure_endpoint(
            url=url,
            target=target,
            # Whether its gateway sends `cache_salt` is not known.
            fields=request_fields(heldout, target, recipe.serving.engine, salted=False),
            prompts=[prompt.text for prompt in prompts],
            sampling=customers_sampling(heldout),
            settings=recipe.eval,
            log_dir=run.attempt(),
            say=console.print,
        )
