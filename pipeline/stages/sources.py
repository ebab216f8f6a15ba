"""Inputs that several stages share: recipe sections, target, logs, parts."""

import dataclasses
from pathlib import Path

from pydantic import BaseModel

from outrider.common.fingerprint import ABSENT, path_digest, store_identity, value_digest
from outrider.eval.config import EvalConfig
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stage import Settings
from outrider.serving.speculator import Speculator, served_directory
from outrider.speculators.base import base_of, is_directory


def section_settings(values: BaseModel, leave_out: set[str] | None = None) -> Settings:
    """A recipe section as plain values, without the keys in `leave_out`."""
    return values.model_dump(mode="json", exclude=leave_out or set())


def target_digest(recipe: Recipe) -> dict[str, str]:
    """Digest of the target: a directory's content or a hub model's commit.

    A hub model's directory is named after its commit. The content is ignored, because more files
    may be downloaded later.
    """
    directory = recipe.target.training_directory()
    if recipe.target.on_hub:
        return {"target": value_digest([recipe.target.model, directory.name])}
    return {"target": path_digest(directory)}


def target_and_base_digests(recipe: Recipe) -> dict[str, str]:
    """Digests of the target, and of the base if it is a directory."""
    digests = target_digest(recipe)
    base = recipe.speculator.base
    if is_directory(base):
        digests["speculator.base"] = path_digest(Path(str(base)).expanduser())
    return digests


def traffic_digests(recipe: Recipe) -> dict[str, str]:
    """Digests of the customer's logs."""
    return {path: log_digest(path) for path in path_list(recipe.traffic.path)}


def general_digests(recipe: Recipe) -> dict[str, str]:
    """Digests of the logs of general traffic."""
    return {f"general {path}": log_digest(path) for path in path_list(recipe.traffic.general)}


def log_digest(source: str) -> str:
    """Digest of a log: of the content of local files, or of object-store metadata for URLs."""
    if "://" in source:
        return _remote_digest(source)
    if Path(source).exists():
        return path_digest(Path(source))
    # A pattern: new or missing files change the digest, too.
    files = sorted(Path("/").glob(source.lstrip("/")))
    return value_digest({str(file): path_digest(file) for file in files}) if files else ABSENT


def served_base_of(run: RunDirectory, recipe: Recipe) -> Speculator:
    """The speculator in use, with the directory from which engines load it."""
    base = base_of(recipe.speculator.base, recipe.target.directory())
    settings = recipe.speculator.base_settings
    return served_speculator(Speculator(base.kind.name, base.directory, settings), run, recipe)


def served_speculator(speculator: Speculator, run: RunDirectory, recipe: Recipe) -> Speculator:
    """The speculator, with the directory from which engines load it."""
    if speculator.directory is None:
        return speculator
    shared = run.root.parent / ".shared"  # shared by all runs on this target
    target_dir = recipe.target.directory()
    directory = served_directory(speculator.directory, target_dir, shared)
    return dataclasses.replace(speculator, directory=directory)


def parts_in_use(run: RunDirectory) -> dict[str, list[str]]:
    """Ids of the split's parts, minus quarantined sequences once a capture has run."""
    from outrider.data.on_policy.check import load_parts
    from outrider.data.split.split import read_parts

    return load_parts(run.split, run.features) if has_quarantine(run) else read_parts(run.split)


def sessions_of_split(run: RunDirectory) -> dict[str, str]:
    """Sessions by sequence id where the split's differ from the log's."""
    from outrider.data.split.split import read_sessions

    return read_sessions(run.split)


def response_p90(run: RunDirectory) -> int | None:
    """90th percentile of the logged responses, in tokens; None before ingest."""
    lengths = run.result_of("ingest").get("lengths")
    return int(lengths["completion"]["p90"]) if lengths else None


def evaluation_settings(run: RunDirectory, recipe: Recipe) -> EvalConfig:
    """The recipe's `eval` section, with timed responses as long as the log's."""
    return recipe.eval.timed_like(response_p90(run), recipe.serving.engine.max_model_len)


def has_quarantine(run: RunDirectory) -> bool:
    """Whether a capture has decided which sequences are off-policy."""
    return (run.features / "quarantine.json").is_file()


def path_list(paths: str | list[str] | None) -> list[str]:
    """Returns a key's paths as a list; empty if it has none."""
    return [paths] if isinstance(paths, str) else paths or []


def _remote_digest(url: str) -> str:
    import fsspec

    from outrider.data.files.sources import storage_errors

    with storage_errors(f"traffic.path = {url!r}"):
        filesystem, path = fsspec.url_to_fs(url)
        files = filesystem.find(path, detail=True)
        if not files:
            files = {match: filesystem.info(match) for match in filesystem.glob(path)}
    return value_digest({name: store_identity(info) for name, info in files.items()})
