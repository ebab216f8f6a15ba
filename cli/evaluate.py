"""`outrider eval`: measures a speculator or a server, or compares evaluated runs.

outrider eval resume_screening --speculator DIR|LOOKUP|none
outrider eval resume_screening --server http://HOST:PORT
outrider eval --compare RUN_A RUN_B --html page.html
"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import outrider
from outrider.cli.options import (
    Flag,
    FromServeCommand,
    MaxGpuHours,
    Overrides,
    RecipeName,
    ResultAsJson,
    Runs,
    Until,
)
from outrider.cli.printing import print_json, print_run_summary, wants_json
from outrider.common.errors import UsageError


def evaluate_speculator(
    recipe: RecipeName | None = None,
    *overrides: Overrides,
    speculator: str | None = None,
    server: str | None = None,
    compare: Annotated[
        tuple[Path, ...], Parameter(consume_multiple=True, negative="", show_default=False)
    ] = (),
    html: Path | None = None,
    until: Until = None,
    max_gpu_hours: MaxGpuHours = None,
    runs: Runs = Path("runs"),
    from_serve_command: FromServeCommand = None,
    again: Annotated[bool, Flag] = False,
    as_json: ResultAsJson = False,
) -> int:
    """Measure a speculator against base and no speculation on held-out traffic.

    Parameters
    ----------
    speculator
        A speculator's directory (an MTP layer or an EAGLE-3 head: config.json, model.safetensors),
        a lookup (a value of `eval.lookup`), or `none`. Default: this recipe's own.
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
        return _compare(compare, html, as_json)
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
    run = outrider.open(
        recipe,
        *overrides,
        runs=runs,
        serve_command=from_serve_command,
        measures_server=server is not None,
    )
    if server is not None:
        return _server(run, server, as_json)
    # The stage whose verdict is printed and decides the exit status.
    judged = "evaluate" if speculator is None else "evaluate_other"
    end = run.window(until, max_gpu_hours)
    results = run.evaluate(speculator, again, end)
    return print_run_summary(run, results, judged=judged, as_json=as_json)


def _server(run: outrider.Run, url: str, as_json: bool) -> int:
    from rich.console import Console

    from outrider.eval.bench.endpoint import print_endpoint

    results = run.measure_server(url)
    print_endpoint(results, Console(stderr=True, markup=False, highlight=False))
    if wants_json(as_json):
        print_json({"recipe": run.recipe.name, **results})
    return 0


def _compare(runs: tuple[Path, ...], html: Path | None, as_json: bool) -> int:
    from rich.console import Console

    from outrider.common.files import publish
    from outrider.eval.report.compare import compare_runs, render_comparison
    from outrider.eval.report.formatting import print_markdown

    compared = compare_runs(runs)
    console = Console(stderr=True, markup=False)
    print_markdown(render_comparison(compared, "markdown"), console)
    if html is not None:
        with publish(html) as temporary:
            temporary.write_text(render_comparison(compared, "html"), encoding="utf-8")
        console.print(f"page: {html}", soft_wrap=True, highlight=False)
    if wants_json(as_json):
        print_json(compared.model_dump(mode="json"))
    return 0
