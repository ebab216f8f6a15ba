"""`outrider adapt`: keeps the speculator of a live endpoint fitted to its traffic.

outrider adapt resume_screening.yaml --endpoint endpoints/resume.yaml
"""

import contextlib
import sys
from pathlib import Path
from typing import Annotated

from outrider.cli.options import EndpointName, Flag, Overrides, RecipeName
from outrider.common.errors import UsageError
from outrider.pipeline.attempt import open_run, print_json


def adapt_speculator(
    recipe: RecipeName,
    *overrides: Overrides,
    endpoint: EndpointName,
    rounds: int | None = None,
    once: Annotated[bool, Flag] = False,
    metrics_port: int | None = None,
) -> int:
    """Follow an endpoint's traffic: watch acceptance, train when it falls, gate, deploy.

    Reads the log that the recipe names (traffic.path) from where it was read last, and keeps going
    until it is stopped; the same command resumes. The policy is the recipe's section `adapt`.

    Parameters
    ----------
    rounds
        Stop after this many training rounds, whether they shipped or not.
    once
        Stop when the log has no whole window left and nothing is under way.
    metrics_port
        Serve Prometheus metrics on this port of 127.0.0.1.
    """
    from outrider.common.process_tree import stopped_by_signal
    from outrider.live.endpoint_file import load_endpoint

    if rounds is not None and rounds < 1:
        raise UsageError(f"--rounds {rounds}: give 1 or more, or leave it out")
    loaded, _ = open_run(recipe, overrides, Path("runs"))
    live = load_endpoint(endpoint)
    # torch, so after the mistakes that are known without it.
    from outrider.live.adapt import Adapter, summary
    from outrider.live.deployer import EndpointDeployer
    from outrider.live.metrics import reporting

    with contextlib.ExitStack() as stack:
        stack.enter_context(stopped_by_signal())
        metrics = stack.enter_context(reporting(live, metrics_port))
        deployer = EndpointDeployer(live, _say, metrics=metrics)
        adapter = stack.enter_context(
            Adapter.open(loaded, live.state_dir, deployer, listener=metrics.publish)
        )
        adapter.run(rounds, once)
        print_json(summary(adapter))
    return 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
