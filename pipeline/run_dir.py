"""The run directory: artifacts and records of stages, logs, and a lock.

run = RunDirectory.of(recipe, runs=Path("runs"))
with run.locked():
    run.begin_attempt(recipe, files, command_line)

runs/NAME/
    recipe.resolved.yaml   every key with its value
    provenance.json        command line, versions, commit, hardware
    stages/STAGE.json      inputs and result of a stage
    logs/attempt_N/        one log per stage
    retention.json         what was deleted after the export
    traffic/ split/ features/ training/ speculator/ evaluation/ bundle/    the artifacts
    metrics.jsonl  report.html  report.json  report.md

With several kinds (`speculator.kind: [mtp, eagle3]`), each kind has

    speculators/KIND/          training/ speculator/ metrics.jsonl
    evaluation/KIND/           replay of the validation part

`speculator`, `metrics.jsonl` and the report belong to the chosen kind. If it is n-gram lookup, only
the report exists.
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from outrider.common.errors import OutriderError
from outrider.common.files import lock, publish, read_json, remove_leftovers, write_json
from outrider.pipeline.provenance import provenance
from outrider.pipeline.recipe.recipe import Recipe


@dataclasses.dataclass(frozen=True)
class RunDirectory:
    """Paths of one run; rerunning the command restores anything deleted below `root`."""

    root: Path
    kind: str | None = None
    """Kind whose training, speculator and evaluation paths are used, in a run of several kinds."""

    def of_kind(self, kind: str) -> "RunDirectory":
        """The same run with the paths of one kind."""
        return dataclasses.replace(self, kind=kind)

    @classmethod
    def of(cls, recipe: Recipe, runs: Path) -> "RunDirectory":
        """The directory of a recipe's run below `runs`."""
        return cls(runs.expanduser().resolve() / recipe.name)

    @property
    def traffic(self) -> Path:
        """Output of ingest: sequences/, rejects.jsonl, summary.json."""
        return self.root / "traffic"

    @property
    def sequences(self) -> Path:
        """The table of token sequences."""
        return self.traffic / "sequences"

    @property
    def general(self) -> Path:
        """Output of ingest for general traffic, if any, laid out like `traffic`."""
        return self.traffic / "general"

    @property
    def tables(self) -> list[Path]:
        """All tables of token sequences, the customer's first."""
        general = self.general / "sequences"
        return [self.sequences, general] if general.is_dir() else [self.sequences]

    @property
    def split(self) -> Path:
        """Output of split: parts.json."""
        return self.root / "split"

    @property
    def features(self) -> Path:
        """Output of capture. As confidential as the text, because states reveal it."""
        return self.root / "features"

    @property
    def trained(self) -> Path:
        """Output of training: `training`, `speculator`, metrics.jsonl, train.log."""
        return self.root / "speculators" / self.kind if self.kind else self.root

    @property
    def training(self) -> Path:
        """Checkpoints with optimizer state, for resuming."""
        return self.trained / "training"

    @property
    def speculator(self) -> Path:
        """The trained speculator: config.json, model.safetensors."""
        return self.trained / "speculator"

    @property
    def metrics(self) -> Path:
        """Training metrics, one JSON object per line."""
        return self.trained / "metrics.jsonl"

    @property
    def evaluation(self) -> Path:
        """Output of evaluate and the logs of its servers."""
        return self.root / "evaluation" / (self.kind or "")

    @property
    def kind_choice(self) -> Path:
        """Output of choose_kind."""
        return self.root / "evaluation" / "kinds.json"

    @property
    def other_evaluation(self) -> Path:
        """Output of evaluate_other, with its report."""
        return self.root / "evaluation_of_other"

    @property
    def bundle(self) -> Path:
        """The directory that an endpoint loads."""
        return self.root / "bundle"

    @property
    def resolved_recipe(self) -> Path:
        """The recipe with every key filled in, as the stages read it."""
        return self.root / "recipe.resolved.yaml"

    def stage_record(self, stage: str) -> Path:
        """The record of a stage: its inputs and its result."""
        return self.root / "stages" / f"{stage}.json"

    def attempt(self) -> Path:
        """The log directory of the current attempt, or of the last one."""
        # Other names, such as attempt_old, are somebody's copies.
        names = [path.name.removeprefix("attempt_") for path in self.root.glob("logs/attempt_*")]
        numbers = [int(name) for name in names if re.fullmatch("[0-9]{1,9}", name)]
        number = max(numbers, default=0)
        return self.root / "logs" / f"attempt_{number}"

    def begin_attempt(
        self, recipe: Recipe, files: tuple[Path, ...], command_line: list[str]
    ) -> None:
        """Creates logs/attempt_N+1 and writes the resolved recipe and the provenance."""
        # The number of the last attempt; attempts are never overwritten.
        number = int(self.attempt().name.removeprefix("attempt_")) + 1
        # Private, because libraries may log anything.
        (self.root / "logs" / f"attempt_{number}").mkdir(parents=True, mode=0o700)
        self.write_resolved(recipe)
        write_json(self.root / "provenance.json", provenance(command_line, files), private=True)

    def write_resolved(self, recipe: Recipe) -> None:
        """Writes recipe.resolved.yaml (mode 0600): paths and environments may be confidential."""
        text = yaml.safe_dump(
            recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True, width=120
        )
        with publish(self.resolved_recipe) as temporary:
            temporary.touch(mode=0o600)
            temporary.write_text(text, encoding="utf-8")

    def read_resolved(self) -> Recipe:
        """The recipe of the current attempt."""
        return Recipe.model_validate(
            yaml.safe_load(self.resolved_recipe.read_text(encoding="utf-8"))
        )

    def read_record(self, stage: str) -> dict[str, Any] | None:
        """A stage's record; None if the stage has not finished yet."""
        path = self.stage_record(stage)
        if not path.is_file():
            return None
        repeat = f"delete it and rerun the command to repeat {stage}"
        try:
            record: dict[str, Any] = read_json(path)
        except OutriderError as error:
            raise OutriderError(f"{error}; {repeat}") from None
        is_record = isinstance(record, dict) and isinstance(record.get("result"), dict)
        if not is_record or not isinstance(record.get("files", {}), dict):
            raise OutriderError(f"{path}: not a stage's record; {repeat}")
        return record

    def result_of(self, stage: str) -> dict[str, Any]:
        """A stage's result; empty if the stage has not finished yet."""
        record = self.read_record(stage)
        return record["result"] if record else {}

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the directory; raises an `OutriderError` if another process holds the lock.

        Temporary files of killed commands and stages are removed, because they may hold raw rows
        and hidden states.
        """
        file = self.root / ".lock"
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            file.touch()
        except OSError as error:
            raise OutriderError(
                f"{self.root}: cannot write here ({error.strerror}); use another place with "
                "--runs DIR"
            ) from None
        doing = "is using this run; wait for it, end it, or use another place with --runs DIR"
        with lock(file, doing):
            remove_leftovers(self.root)
            try:
                yield
            finally:
                remove_leftovers(self.root)
