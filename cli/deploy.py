"""`outrider deploy`: deploys a bundle to a live endpoint, with a canary.

outrider deploy runs/march --endpoint endpoints/resume.yaml
outrider deploy --status --endpoint endpoints/resume.yaml
outrider deploy --rollback --endpoint endpoints/resume.yaml
"""

import sys
from typing import TYPE_CHECKING, Annotated, Literal

from outrider.cli.options import AsJson, EndpointName, Flag
from outrider.cli.printing import print_json, print_result, wants_json
from outrider.common.errors import UsageError
from outrider.common.inert import printable

if TYPE_CHECKING:
    from outrider.live.endpoint_file import Endpoint
    from outrider.live.state import Deployment


def deploy_speculator(
    bundle: str | None = None,
    *,
    endpoint: EndpointName,
    status: Annotated[bool, Flag] = False,
    as_json: AsJson = False,
    rollback: Annotated[bool, Flag] = False,
    promote: Annotated[bool, Flag] = False,
    recover: Annotated[bool, Flag] = False,
    in_place: Annotated[bool, Flag] = False,
    local: Annotated[bool, Flag] = False,
    load: str | None = None,
    manifest: Literal["kserve", "argo"] | None = None,
) -> int:
    """Deploy a speculator to a live endpoint: canary, then promotion or rollback.

    Parameters
    ----------
    bundle
        A run directory, or an exported bundle: a folder, or an address such as hf://, s3:// or
        oci:.
    status
        Print what the endpoint serves and what is being deployed.
    as_json
        Print the result as one line of JSON also to a terminal.
    rollback
        End the deployment in progress, or return to the previous release.
    promote
        Promote the canary's release now.
    recover
        Finish an interrupted deployment and bring all replicas to the same release.
    in_place
        Update the replicas one after another, without a canary; a replica rolls back if its
        acceptance falls short of the value recorded in the bundle.
    local
        Start the endpoint's replicas and Envoy on this machine, and stop them afterwards. Without
        a bundle they serve until Ctrl-C.
    load
        With --local: send the requests of this log (a path, or the name of shipped traffic).
    manifest
        Print Kubernetes manifests for this bundle and endpoint instead of deploying.
    """
    from outrider.live.actions import bundle_of, chosen_action
    from outrider.live.endpoint_file import load_endpoint

    action = chosen_action(
        bundle,
        {
            "--status": status,
            "--rollback": rollback,
            "--promote": promote,
            "--recover": recover,
            "--manifest": manifest is not None,
            "--local": local,
        },
    )
    if load is not None and not local:
        raise UsageError("--load needs --local; a live endpoint receives its own requests")
    live = load_endpoint(endpoint)
    if bundle is not None:
        bundle = bundle_of(bundle)
    match action:
        case "--status":
            return _status(live, as_json)
        case "--recover":
            return _recover(live, as_json)
        case "--rollback":
            return _end(live, "roll_back", as_json)
        case "--promote":
            return _end(live, "promote", as_json)
        case "--local":
            return _local(live, bundle, in_place=in_place, load=load, as_json=as_json)
    assert bundle is not None  # `chosen_action` requires one for what is left
    if manifest is not None:
        return _print_manifest(live, bundle, manifest)
    return _deploy(live, bundle, in_place, as_json)


def _recover(endpoint: "Endpoint", as_json: bool) -> int:
    from outrider.live.controller import open_controller

    with open_controller(endpoint, _say) as controller:
        controller.recover()
    return _status(endpoint, wants_json(as_json))


def _end(endpoint: "Endpoint", ending: Literal["promote", "roll_back"], as_json: bool) -> int:
    from outrider.live.controller import end_deployment

    ended = end_deployment(endpoint, ending, say=_say)
    return _ended(endpoint, ended, as_json, ending)


def _print_manifest(endpoint: "Endpoint", bundle: str, manifest: Literal["kserve", "argo"]) -> int:
    from outrider.live.manifests import write_manifest

    print(write_manifest(manifest, bundle, endpoint), end="")
    return 0


def _deploy(endpoint: "Endpoint", bundle: str, in_place: bool, as_json: bool) -> int:
    from outrider.common.process_tree import stopped_by_signal
    from outrider.live.controller import deploy_bundle

    with stopped_by_signal():
        return _ended(endpoint, deploy_bundle(bundle, endpoint, in_place, _say), as_json)


def _local(
    endpoint: "Endpoint",
    bundle: str | None,
    *,
    in_place: bool,
    load: str | None,
    as_json: bool,
) -> int:
    import contextlib
    import threading

    from outrider.common.process_tree import stopped_by_signal
    from outrider.live import local

    with stopped_by_signal(), contextlib.ExitStack() as stack:
        prompts = local.read_prompts(load) if load is not None else []
        stack.enter_context(local.local_endpoint(endpoint, bundle, _say))
        if prompts:
            stack.enter_context(local.generate_load(endpoint, prompts))
        if bundle is not None:
            return _deploy(endpoint, bundle, in_place, as_json)
        _say(f"serving on {endpoint.router.listen}; Ctrl-C stops everything")
        # Nothing sets it: a signal raises `Interrupted` here.
        threading.Event().wait()
    return 0


def _status(endpoint: "Endpoint", as_json: bool) -> int:
    from outrider.live.status import endpoint_status, status_lines

    report = endpoint_status(endpoint)
    if as_json:
        print_json(report)
    else:
        print(printable("\n".join(status_lines(report))))
    return int(bool(report["problems"]))


def _ended(
    endpoint: "Endpoint", ended: "Deployment", as_json: bool, ending: str = "promote"
) -> int:
    """Prints a deployment; returns 0 if it ended as `ending` names."""
    from outrider.live.status import deployment_summary

    print_result(deployment_summary(endpoint, ended), as_json)
    # A replica that does not answer may still serve the old release.
    if ended.behind:
        return 1
    return 0 if ended.went_back == (ending == "roll_back") else 3


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)
