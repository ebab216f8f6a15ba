"""`outrider erase`: erases sessions from a lookup's bundle, or from a live endpoint.

outrider erase 'conversation 17' --bundle runs/march/bundle
outrider erase 'conversation 17' --endpoint endpoints/resume.yaml
"""

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from outrider.cli.options import ResultAsJson
from outrider.cli.printing import print_result
from outrider.common.errors import UsageError
from outrider.common.inert import printable


def erase(
    *sessions: str,
    bundle: Path | None = None,
    endpoint: Annotated[
        str | None, Parameter(help="File of the endpoint (YAML), or the name of a shipped one.")
    ] = None,
    as_json: ResultAsJson = False,
) -> int:
    """Erase sessions from a lookup's history, in a bundle or a live endpoint.

    Parameters
    ----------
    sessions
        Ids of the sessions, as in the log. Without ids in the log: names in the column `session`
        of the run's traffic/sequences.
    bundle
        Folder of an exported bundle.
    """
    if not sessions:
        raise UsageError("no session: give the ids of the sessions to erase")
    if (bundle is None) == (endpoint is None):
        raise UsageError("give one of --bundle and --endpoint")
    if bundle is not None:
        from outrider.serving.bundle.erase import erase_sessions

        responses = erase_sessions(bundle, sessions)
        print_result({"bundle": str(bundle), "responses": responses}, as_json)
        return 0
    assert endpoint is not None
    from outrider.live.controller import erase_from_endpoint
    from outrider.live.endpoint_file import load_endpoint

    live = load_endpoint(endpoint)
    erased = erase_from_endpoint(live, sessions, say)
    result = {
        "endpoint": live.name,
        "responses": erased.responses,
        "releases": erased.replaced,
        "behind": list(erased.behind),
    }
    print_result(result, as_json)
    return 1 if erased.behind else 0


def say(text: str) -> None:
    """Prints progress to stderr."""
    print(printable(text), file=sys.stderr, flush=True)
