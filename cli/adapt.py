"""`outrider adapt`: keeps a live endpoint's speculator fitted to its traffic."""

from typing import Annotated

import outrider
from outrider.cli.options import EndpointName, Flag, Overrides, RecipeName, ResultAsJson
from outrider.cli.printing import print_result


def adapt_speculator(
    recipe: RecipeName,
    *overrides: Overrides,
    endpoint: EndpointName,
    rounds: int | None = None,
    once: Annotated[bool, Flag] = False,
    as_json: ResultAsJson = False,
) -> int:
    """Follow an endpoint's traffic: watch acceptance, train when it falls, gate, deploy.

    Reads the recipe's log (traffic.path) from where the previous run stopped, and runs until it is
    stopped; rerun it to resume. The policy is set in the recipe's section `adapt`.

    Parameters
    ----------
    rounds
        Stop after this many training rounds, whether they shipped or not.
    once
        Stop when the log has no complete window left and no round or deployment is in progress.
    """
    from outrider.common.process_tree import stopped_by_signal

    with stopped_by_signal():
        summary = outrider.adapt_endpoint(
            recipe, *overrides, endpoint=endpoint, rounds=rounds, once=once
        )
        print_result(summary, as_json)
    return 0
