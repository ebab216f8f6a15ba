"""`outrider eval`: measures a speculator or a server, or compares evaluated runs.

outrider eval resume_screening --speculator DIR|ngram|suffix|none
outrider eval resume_screening --server http://HOST:PORT
outrider eval --compare RUN_A RUN_B --html page.html
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from outrider.cli.options import Flag, FromServeCommand, Overrides, RecipeName, Runs
from outrider.common.errors import UsageError
from outrider.pipeline.attempt import attempt, evaluate_run, open_run, print_json, print_summary

if TYPE_CHECKING:
    from outrider.pipeline.recipe.load import LoadedRecipe
    from outrider.pipeline.run_dir import RunDirectory


def evaluate_speculator(
    recipe: RecipeName | None = None,
    *overrides: Overrides,
    speculator: str | None = None,
    server: str | None = None,
    compare: Annotated[
        tuple[Path, ...], Parameter(consume_multiple=True, negative="", show_default=False)
    ] = (),
    html: Path | None = None,
    runs: Runs = Path("runs"),
    from_serve_command: FromServeCommand = None,
    again: Annotated[bool, Flag] = False,
) -> int:
    """Measure a speculator against base and no speculation on held-out traffic.

    Parameters
    ----------
    speculator
        A speculator's directory (an MTP layer or an EAGLE-3 head: config.json, model.safetensors),
        `ngram` or `suffix` for vLLM's lookups, or `none`. Default: this recipe's own.
    server
        Address of a running vLLM server, http://HOST:PORT. Measures its acceptance (from /metrics)
        and speed on the held-out traffic; gives no verdict. Its target may be any model.
    compare
        Evaluated run directories to compare; nothing is measured. Also shows the drift of a
        speculator that was evaluated in several of the runs.
    html
        With --compare: HTML file to write the comparison to.
    again
        Discard the run's speeds and measure them again, for instance after other work has disturbed
        them. All other measurements are kept.
    """
    if compare:
        return _compare(compare, html)
    if html is not None:
        raise UsageError(
            f"--html {html} needs --compare RUN_A RUN_B; an evaluation writes its page to the run "
            "directory"
        )
    if recipe is None:
        raise UsageError(
            "nothing to evaluate: give a recipe, or --compare RUN_A RUN_B for evaluated runs"
        )
    if again and server is not None:
        raise UsageError("--again: --server measures everything again anyway; leave it out")
    if server is not None and not server.startswith(("http://", "https://")):
        raise UsageError(f"--server {server}: give its address, such as http://{server}")
    loaded, run = open_run(
        recipe=recipe,
        overrides=overrides,
        runs=runs,
        serve_command=from_serve_command,
        measures_server=server is not None,
    )
    if server is not None:
        return _server(loaded, run, server)
    judged = "evaluate" if speculator is None else "evaluate_other"
    return print_summary(loaded, run, evaluate_run(loaded, run, speculator, again), judged)


def _server(loaded: "LoadedRecipe", run: "RunDirectory", url: str) -> int:
    from rich.console import Console

    from outrider.common.process_tree import stopped_by_signal
    from outrider.pipeline.preflight import measured_only
    from outrider.pipeline.stages.sources import has_quarantine, parts_in_use
    from outrider.serving.config import TargetConfig

    recipe = loaded.recipe
    with attempt(loaded, run) as go:
        go(["ingest", "split"], {"measured": measured_only(recipe) is not None})
        # Slow to import, so imported only after the stages have run.
        from outrider.data.sequences import load_sequences
        from outrider.eval.bench.endpoint import measure_endpoint, print_endpoint
        from outrider.eval.bench.prompts import customers_sampling, evaluation_prompts

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
            results = measure_endpoint(
                url=url,
                target=TargetConfig(model=str(recipe.target.training_directory())),
                prompts=[prompt.text for prompt in prompts],
                sampling=customers_sampling(heldout),
                settings=recipe.eval,
                log_dir=run.attempt(),
                say=console.print,
            )
    print_endpoint(results, console)
    print_json({"recipe": recipe.name, **results})
    return 0


def _compare(runs: tuple[Path, ...], html: Path | None) -> int:
    from rich.console import Console

    from outrider.common.files import publish
    from outrider.eval.report.compare import compare, rendered
    from outrider.eval.report.formatting import print_markdown

    compared = compare(runs)
    console = Console(stderr=True)
    print_markdown(rendered(compared, "markdown"), console)
    if html is not None:
        with publish(html) as temporary:
            temporary.write_text(rendered(compared, "html"), encoding="utf-8")
        console.print(f"page: {html}", soft_wrap=True, highlight=False)
    print_json(compared.model_dump(mode="json"))
    return 0
