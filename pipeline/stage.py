"""A stage of a run: its inputs, its work and its record. runner.py runs it.

    stage_of("capture", recipe).reasons(run, recipe, {})    # why it must run; empty: it is done

A stage is skipped when its artifact exists and its inputs are unchanged: its part of the recipe,
the artifacts of the stages it needs, the target, the log, and the version of its code.
"""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypedDict

from outrider.common.errors import OutriderError
from outrider.common.fingerprint import CachedResult, changed_file, file_digests
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.retention import deletion_of
from outrider.pipeline.run_dir import RunDirectory

Settings = dict[str, object]
"""Part of a recipe, as JSON values by section."""

Result = Mapping[str, object]
"""What a stage's record holds about its work, as JSON values."""


NEW = "not done yet"
"""Reason of a stage without a record; it is left out when the stage begins."""


class Options(TypedDict, total=False):
    """Command-line options that are not in the recipe, as JSON values."""

    force: bool
    """Export a speculator that is not better than the base."""
    speculator: str
    """The speculator to evaluate: a directory or a kind without weights."""
    weights: str | None
    """Digest of that directory; None if there is none."""
    parity: bool
    """Compare trainer and engine before a training round."""
    measured: bool
    """Only measure a running endpoint; its target need not be one that can be trained."""


@dataclasses.dataclass(frozen=True)
class Stage:
    """One stage; increment `version` when a code change alters its outputs."""

    name: str
    # Not a digest of the code: most changes of code do not change results.
    version: int
    needs: tuple[str, ...]
    """Stages whose output it reads."""
    settings: Callable[[Recipe], Settings]
    """The part of the recipe that its result depends on."""
    sources: Callable[[Recipe], dict[str, str]]
    """Digests of its inputs outside the run directory."""
    work: Callable[[RunDirectory, Recipe, Options], Result]
    """Does the work and returns the result that the record holds."""
    artifact: Callable[[RunDirectory], Path]
    """The file or directory that must exist when it is done."""
    identity: Callable[[RunDirectory], Path]
    """The part of the artifact whose digest later stages depend on."""
    outputs: Callable[[RunDirectory], tuple[Path, ...]] | None = None
    """Files and folders that it writes and others read; by default the `identity`."""
    unfinished: Callable[[RunDirectory], tuple[Path, ...]] = lambda run: ()
    """Work in progress, deleted when the inputs change."""
    options: tuple[str, ...] = ()
    """Command-line options that count as inputs."""
    reads: Callable[[RunDirectory], tuple[Path, ...]] = lambda run: ()
    """Inputs with customer text, which retention may have deleted."""
    handles_text: bool = False
    """Whether its errors may quote customer text."""
    starts_engines: bool = False

    def inputs(self, run: RunDirectory, recipe: Recipe, options: Options) -> Settings:
        """Everything that the result depends on, as digests and values."""
        # A stage depends on what those before it wrote: equal output keeps it done.
        records = {name: run.read_record(name) or {} for name in self.needs}
        artifacts = {name: record.get("artifact", "absent") for name, record in records.items()}
        values = dict(options)
        return {
            "code": {self.name: f"version {self.version}"},
            "recipe": self.settings(recipe),
            "source": self.sources(recipe),
            "output of": artifacts,
            "option": {name: values.get(name) for name in self.options},
        }

    def reasons(self, run: RunDirectory, recipe: Recipe, options: Options) -> list[str]:
        """Why it must run; empty if it is done."""
        if not run.stage_record(self.name).is_file():
            resumes = self.started_file(run).is_file()
            return ["resumes where it stopped" if resumes else NEW]
        run.read_record(self.name)  # raises an error that names the stage if it is damaged
        # A record alone does not show that its output is still there.
        artifact = self.artifact(run)
        deleted = deletion_of(run, artifact)
        if deleted and recipe.privacy.retention == "keep":
            return [f"retention deleted {artifact.name} after the export ({deleted})"]
        if not deleted and not artifact.exists():
            return [f"{artifact.name} is missing"]
        missing = [path for path in self._recorded(run) if not path.exists()]
        if lost := [path.name for path in missing if deletion_of(run, path) is None]:
            return [f"{lost[0]} is missing"]
        return self.record(run, recipe, options).changes() or []

    def check_output(self, run: RunDirectory) -> None:
        """Raises an `OutriderError` if a file is not what its record has the digest of.

        Files that are missing are in `reasons`; files that the record lacks are somebody else's.
        """
        record = run.read_record(self.name) or {}
        path = changed_file(run.root, record.get("files", {}))
        if path is not None:
            raise OutriderError(
                f"{path}: changed since {self.name} wrote it; restore it, or delete"
                f" {self.artifact(run)} and rerun the command to repeat {self.name}"
            )

    def digests(self, run: RunDirectory) -> dict[str, str]:
        """Digests of the files that it wrote, by path in the run directory, for its record."""
        outputs = self.outputs(run) if self.outputs else (self.identity(run),)
        return file_digests(run.root, outputs)

    def _recorded(self, run: RunDirectory) -> list[Path]:
        record = run.read_record(self.name) or {}
        return [run.root / name for name in record.get("files", {})]

    def record(self, run: RunDirectory, recipe: Recipe, options: Options) -> CachedResult:
        """Its record for these inputs."""
        return CachedResult(run.stage_record(self.name), self.inputs(run, recipe, options))

    def started_file(self, run: RunDirectory) -> Path:
        """The inputs of the work in progress; the file is removed when the work is done."""
        return run.root / "stages" / f"{self.name}.started.json"
