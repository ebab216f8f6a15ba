"""What can be done with an endpoint: deploy a bundle, or one action in its place.

chosen_action(None, {"--status": True, "--rollback": False})      # "--status"
bundle_of("runs/march")                                           # "runs/march/bundle"
"""

from pathlib import Path

from outrider.common.errors import OutriderError, UsageError


def chosen_action(bundle: str | None, actions: dict[str, bool]) -> str | None:
    """The one action that is set, None for a deployment; checks that it goes with `bundle`."""
    chosen = [name for name, is_set in actions.items() if is_set]
    if len(chosen) > 1:
        raise UsageError(f"{' and '.join(chosen)}: give one of them")
    action = chosen[0] if chosen else None
    if bundle is None and action in (None, "--manifest"):
        raise UsageError(
            "no bundle: give a run directory or an exported bundle, or one of --status,"
            " --rollback, --promote, --recover"
        )
    if bundle is not None and action not in (None, "--manifest", "--local"):
        raise UsageError(f"{action} takes no bundle")
    return action


def bundle_of(location: str) -> str:
    """Returns a run directory's bundle; any other location is returned unchanged."""
    root = Path(location).expanduser()
    if not (root / "recipe.resolved.yaml").is_file():
        return location
    if not (root / "bundle" / "bundle.json").is_file():
        raise OutriderError(
            f"{location}: this run has no bundle; `outrider export {location} --to DIR` writes it"
            " if the verdict is `ship`"
        )
    return str(root / "bundle")
