"""What can be known to be wrong before the first stage is known before the first stage, not hours into the run.

check(recipe)      # an OutriderError names the key, the file and the fix
"""

import importlib.util
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.data.config import NOT_INSTALLED
from outrider.eval.lossless.task_accuracy import task_of
from outrider.recipes.config.recipe import Recipe
from outrider.recipes.config.shipped import EMBEDDED_TRAFFIC
from outrider.serving.config import EMBEDDED_TARGETS
from outrider.speculators.checkpoints.compatibility import check_speculator
from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.kinds import kind_of, trainable_kind


def check(recipe: Recipe, dry_run: bool = False) -> None:
    """The log is there, what looks for personal data is installed, the evaluation's check of tasks is found, and the target, if it is on
    this machine already, has the layer that is to be trained; for a dry run its config.json and, where it is there, its index are enough."""
    check_traffic(recipe)
    _check_privacy(recipe)
    task_of(recipe.evaluation())
    if target := local_target(recipe):
        check_target(target, recipe.speculator, dry_run)


def has_weights(target: Path) -> bool:
    """Whether a target's directory holds the shards that its index names, or the only file."""
    index = target / "model.safetensors.index.json"
    shards = (
        set(read_json(index)["weight_map"].values()) if index.is_file() else {"model.safetensors"}
    )
    return all((target / shard).is_file() for shard in shards)


def local_target(recipe: Recipe) -> Path | None:
    """The target's directory if it is on this machine; unlike `TargetConfig.directory`, fetches nothing."""
    model = recipe.target.model
    if model in EMBEDDED_TARGETS or model.count("/") != 1 or Path(model).expanduser().is_dir():
        return recipe.target.training_directory()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(model, revision=recipe.target.revision, local_files_only=True)
        )
    except LocalEntryNotFoundError:
        return None


def check_traffic(recipe: Recipe) -> None:
    """Every path of the log names something."""
    for key, paths in (("path", recipe.traffic.path), ("general", recipe.traffic.general or [])):
        _check_paths(key, [paths] if isinstance(paths, str) else paths)


def _check_paths(key: str, paths: list[str]) -> None:
    for path in paths:
        if "://" in path or Path(path).exists() or any(Path("/").glob(path.lstrip("/"))):
            continue
        embedded = sorted(
            f"nano_r1/{log.name.removesuffix('.jsonl.gz')}"
            for log in EMBEDDED_TRAFFIC.glob("*.jsonl.gz")
        )
        raise OutriderError(
            f"traffic.{key} = {path!r}: no such file or folder (a relative one is looked for beside its recipe, then where the "
            f"command starts); give a log, a folder of logs or a URL, in the recipe or as traffic.{key}=... on the command line "
            f"(with the package come {', '.join(embedded) or 'none'})"
        )


def _check_privacy(recipe: Recipe) -> None:
    if recipe.privacy.mode != "off" and importlib.util.find_spec("presidio_analyzer") is None:
        raise OutriderError(NOT_INSTALLED)
    key_file = recipe.privacy.key_file
    if (
        recipe.privacy.mode == "surrogate"
        and key_file is not None
        and not Path(key_file).expanduser().is_file()
    ):
        raise OutriderError(
            f"privacy.key_file = {key_file!r}: no such file (a relative one is looked for beside its recipe, then where the command "
            "starts); make one, such as `head -c 32 /dev/urandom > FILE`, or leave the key out for one of the run's own"
        )


def check_target(
    target: Path, speculator: SpeculatorConfig | None = None, dry_run: bool = False
) -> None:
    """A speculator of the recipe's kind can be trained from this target and base.

    A dry run needs config.json only.
    """
    speculator = speculator or SpeculatorConfig()
    kind = trainable_kind(speculator.kind)
    base = Path(speculator.base).expanduser() if speculator.base else None
    warm_start = base if base is not None and kind_of(base) is kind else None
    kind.check_target(target, warm_start, dry_run)
    if base is not None and (not dry_run or has_weights(target)):
        check_speculator(base, target)
