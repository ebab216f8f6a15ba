"""Preflight checks: mistakes that can be found before the first stage."""

import importlib.util
import logging
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.common.own_code import code_file, load_function
from outrider.data.config import NOT_INSTALLED
from outrider.eval.config import ANSWERS
from outrider.eval.lossless.task_accuracy import task_of
from outrider.pipeline.paths import check_log_paths
from outrider.pipeline.recipe.recipe import Recipe
from outrider.serving.speculator import Drafting, Speculator
from outrider.serving.vllm_arguments import pipeline_refusal, speculator_refusal
from outrider.serving.vllm_version import version_refusal, vllm_version
from outrider.speculators.base import base_of, is_directory, warm_directory
from outrider.speculators.checkpoints.architectures import is_supported, verifier_of
from outrider.speculators.checkpoints.layout import (
    INDEX,
    SINGLE,
    read_index,
    read_layout,
    read_target_config,
)
from outrider.speculators.checkpoints.model_config import read_config
from outrider.speculators.checkpoints.refusals import language_config
from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.kinds import (
    check_speculator,
    drafter_kind_of,
    trainable_kind,
    trainable_names,
)
from outrider.training.distributed.launch import processes_here

logger = logging.getLogger(__name__)


def check_recipe(recipe: Recipe, dry_run: bool = False, serves: bool = True) -> None:
    """Checks vLLM's version, logs, privacy, the evaluation's task and a local target.

    A dry run needs only the target's config.json and, if there is one, its weight index. It runs
    no code of the recipe. `serves` is false if only a running endpoint is measured.
    """
    _check_vllm()
    check_log_paths(recipe)
    privacy = recipe.privacy
    # find_spec imports nothing; presidio would import spaCy, which takes seconds.
    if privacy.mode != "off" and importlib.util.find_spec("presidio_analyzer") is None:
        raise OutriderError(NOT_INSTALLED)
    if privacy.key_file is not None and not Path(privacy.key_file).expanduser().is_file():
        raise OutriderError(
            f"privacy.key_file = {privacy.key_file!r}: no such file, neither relative to the recipe"
            " nor to the current directory; create it with `head -c 32 /dev/urandom > FILE`, or"
            " leave out privacy.key_file to generate a key for the run"
        )
    _check_own_code(recipe, dry_run)
    target = local_target(recipe)
    if target is not None:
        _check_quantization(target, recipe)
        if serves:
            _check_output_layer(target, recipe)
    if serves and (refusal := pipeline_refusal(recipe.serving.engine)):
        raise OutriderError(refusal)
    if not recipe.serving.engine.changes_drafters:
        logger.info(
            "serving.engine: with data parallelism or EPLB, each speculator and each number of"
            " drafts is served by a separate engine, one after another; --dry-run prints the number"
            " of starts; eval.k=NUMBER avoids those that choose k"
        )
    _note_lowered_processes(recipe)
    if target is not None:
        check_target_and_base(target, recipe.speculator, dry_run)
    if is_directory(base := recipe.speculator.base):
        directory = Path(str(base)).expanduser()
        served = Speculator(drafter_kind_of(directory).name, directory)
        check_servable(served, recipe, f"speculator.base = {base}", recipe.eval.current_k)
        _note_other_verifier(directory, recipe.target.model)


def _note_other_verifier(head: Path, target: str) -> None:
    """Logs a line if a head in the speculators format names another target than the recipe's.

    Directories are compared by their names, since a copy may be anywhere.
    """
    path = head / "config.json"
    verifier = verifier_of(read_config(path)) if path.is_file() else None
    if verifier and Path(verifier).name.lower() != Path(target).name.lower():
        logger.info(
            "speculator.base = %s: its config.json names the target %s, not %s: unless one is a"
            " copy of the other, expect few accepted drafts from it; training may start from it",
            head,
            verifier,
            target,
        )


def check_servable(
    speculator: Speculator, recipe: Recipe, where: str, own_k: int | None = None
) -> None:
    """Checks that the recipe's engine can serve a speculator; `own_k`: its drafts per step."""
    same_k = recipe.speculator.depth if recipe.eval.k == "auto" else recipe.eval.k
    drafting = Drafting(speculator, own_k or same_k)
    if refusal := speculator_refusal(drafting, recipe.serving.engine):
        raise OutriderError(f"{where}: {refusal}")


QUANTIZATIONS = frozenset({
    "auto-round", "auto_awq", "auto_gptq", "awq", "awq_marlin", "compressed-tensors",
    "deepseek_v4_fp8", "experts_int8", "fbgemm_fp8", "fp8", "fp_quant", "gpt_oss_mxfp4", "gptq",
    "gptq_marlin", "humming", "inc", "modelopt", "modelopt_fp4", "modelopt_mixed",
    "modelopt_mxfp8", "moe_wna16", "mxfp4", "mxfp8", "quark", "torchao",
})  # fmt: skip
"""`quant_method` of checkpoints that vLLM 0.32 loads (layers/quantization/__init__.py)."""


DEPRECATED_QUANTIZATIONS = frozenset({"fbgemm_fp8", "fp_quant"})
"""Those of `QUANTIZATIONS` for which it needs --allow-deprecated-quantization (config/model.py)."""


def _check_quantization(target: Path, recipe: Recipe) -> None:
    """Refuses formats that vLLM lacks, unless the recipe names a plug-in's as `quantization`."""
    section = read_target_config(target).get("quantization_config") or {}
    method = section.get("quant_method")
    arguments = recipe.serving.engine.extra_arguments
    added = arguments.get("quantization")
    # MLX writes bits and group size alone. Model-Optimizer's files may lack the method, too.
    if section.keys() >= {"bits", "group_size"} and not (method or added or "producer" in section):
        raise OutriderError(
            f"{target / 'config.json'}: quantization_config has no quant_method, as MLX writes it,"
            " and vLLM 0.32 does not load MLX's weights; point target.model at a checkpoint of the"
            " same model in bf16, FP8, AWQ, GPTQ or compressed-tensors"
        )
    if method in DEPRECATED_QUANTIZATIONS and not arguments.get("allow_deprecated_quantization"):
        raise OutriderError(
            f"{target / 'config.json'}: quantization_config.quant_method = {method}: deprecated,"
            " and vLLM 0.32 does not start with it unless it is allowed; set"
            " serving.engine.extra_arguments.allow_deprecated_quantization=true, or point"
            " target.model at a checkpoint of the same model in FP8 or compressed-tensors"
        )
    if method in (None, "", added) or method in QUANTIZATIONS:
        return
    raise OutriderError(
        f"{target / 'config.json'}: quantization_config.quant_method = {method}: vLLM 0.32 does not"
        " load it; point target.model at a checkpoint of the same model in bf16, FP8, AWQ, GPTQ or"
        " compressed-tensors, or, if a plug-in of vLLM loads it, set"
        f" serving.engine.extra_arguments.quantization to {method}"
    )


def _check_output_layer(target: Path, recipe: Recipe) -> None:
    """Refuses kinds with weights for a target whose output layer is quantized, as GPTQModel can."""
    section = read_target_config(target).get("quantization_config") or {}
    if section.get("lm_head") and set(trainable_names()).intersection(recipe.speculator.kinds):
        raise OutriderError(
            f"{target / 'config.json'}: quantization_config.lm_head = true: training reads the"
            " output layer unquantized; point target.model at a checkpoint of the same model whose"
            " lm_head is in bf16 or float16"
        )


def _note_lowered_processes(recipe: Recipe) -> None:
    """Logs a line if this machine has fewer GPUs than `training.processes`."""
    processes = processes_here(recipe.training, recipe.cluster)
    if processes == recipe.training.processes:
        return
    logger.info(
        "training.processes = %d: more than this machine's GPUs, so it is %d here, one process per"
        " GPU",
        recipe.training.processes,
        processes,
    )


def recipe_without_training(recipe: Recipe) -> Recipe | None:
    """The recipe for measuring an endpoint whose target cannot be trained; None if it can.

    `serving.engine.max_model_len` becomes the number of positions, at most 32,768.
    """
    target = local_target(recipe) or recipe.target.training_directory()
    config = read_config(target / "config.json")
    if is_supported(config):
        return None
    engine = recipe.serving.engine
    if "max_model_len" not in engine.model_fields_set:
        positions = language_config(config).get("max_position_embeddings") or engine.max_model_len
        engine = engine.model_copy(update={"max_model_len": min(positions, 32_768)})
    serving = recipe.serving.model_copy(update={"engine": engine})
    return recipe.model_copy(update={"serving": serving})


def has_weights(target: Path) -> bool:
    """Whether a target's directory holds all its weight files."""
    index = target / "model.safetensors.index.json"
    shards = {"model.safetensors"}
    if index.is_file():
        shards = set(read_index(index).values())
    return all((target / shard).is_file() for shard in shards)


def local_target(recipe: Recipe) -> Path | None:
    """The target's directory if it is on this machine. Downloads nothing."""
    if directory := recipe.target.local_directory():
        return directory
    # Slow to import, and needed for hub models only.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                recipe.target.model, revision=recipe.target.revision, local_files_only=True
            )
        )
    except LocalEntryNotFoundError:
        return None


def _check_vllm() -> None:
    try:
        installed = vllm_version()
    except OutriderError:  # not installed: the stages that need it will fail
        return
    if refusal := version_refusal(installed):
        raise OutriderError(refusal)


def _check_own_code(recipe: Recipe, dry_run: bool) -> None:
    """Names the files of the recipe's own code, and imports them unless this is a dry run."""
    task = recipe.eval.task
    is_function = task is not None and not task.endswith(ANSWERS)
    functions = {
        "eval.task": task if is_function else None,
        "training.loss": recipe.training.own_loss,
    }
    for key, name in functions.items():
        if name is None:
            continue
        logger.info("%s = %s: a run executes %s", key, name, code_file(name, key))
        if not dry_run:
            load_function(name, key)
    if not is_function:
        task_of(recipe.eval)


def check_target_and_base(
    target: Path, speculator: SpeculatorConfig | None = None, dry_run: bool = False
) -> None:
    """Checks target and base against the kinds; dry runs need no weights."""
    speculator = speculator or SpeculatorConfig()
    for name in speculator.kinds:
        warm = warm_directory(speculator.of_kinds([name]))
        trainable_kind(name).check_target(target, warm, dry_run)
    if any((target / name).is_file() for name in (INDEX, SINGLE)):
        layout = read_layout(target)
        layout.files(layout.embedding_and_head)  # raises if they are quantized or missing
    speculator_dir = (
        base_of(speculator.base, target).directory if is_directory(speculator.base) else None
    )
    if speculator_dir is not None and (not dry_run or has_weights(target)):
        check_speculator(speculator_dir, target)
