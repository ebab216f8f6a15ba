"""Resolves a recipe for its target: fills in values that the target and the engine determine.

    recipe, notes = resolve_for_target(recipe)     # notes: lines that explain the choices
    recipe.speculator.kinds                        # ("mtp", "eagle3") for speculator.kind=auto

The values are the lengths, the learning rate, the engine's attention, the head's layer type and the
kinds. Values set in the recipe are kept. The target's config.json determines which kinds are
supported; the engine's KV-cache layout limits which of them it can serve.
"""

import dataclasses
import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.eval.config import AUTO_LOOKUP
from outrider.pipeline.preflight import local_target
from outrider.pipeline.recipe.recipe import Recipe
from outrider.serving.attention import mixed_cache_refusal, mla_refusal
from outrider.serving.config import EngineConfig
from outrider.serving.runner import runner_refusal
from outrider.serving.vllm_arguments import runs_mla
from outrider.serving.vllm_version import runs_on_cpu
from outrider.speculators.base import (
    main_refusal,
    planned_config,
    unsupported_kinds,
    warm_directory,
)
from outrider.speculators.checkpoints.architectures import architecture_of, check_keys
from outrider.speculators.checkpoints.layout import CONFIG_FILES, check_checkpoint
from outrider.speculators.checkpoints.model_config import read_config
from outrider.speculators.config import ANY_LOOKUP, AUTO
from outrider.speculators.kinds import (
    DEFAULT_KIND,
    installed_lookups,
    kind_named,
    trainable_kind,
    trainable_names,
)
from outrider.speculators.layers.rope import rope_of

MAX_MODEL_LEN = 32_768
"""Largest default of `serving.engine.max_model_len`. R1 has 163,840 positions; few logs need that
many, and the engine must have room for one request of this length in its KV cache."""


WITH_ALL_POSITIONS = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Rotary embeddings whose `factor` is part of max_position_embeddings; other types multiply it
(vLLM 0.32, config/model.py, _get_and_verify_max_len)."""


def resolve_for_target(recipe: Recipe, target_dir: Path | None = None) -> tuple[Recipe, list[str]]:
    """Returns the recipe with the values that its target determines, and notes.

    `target_dir` contains the target's config.json; None if unknown. If a hub model is not on this
    machine, only its config.json is downloaded. Without one, a recipe that names its kinds is
    returned as it is: its run downloads the target later, or fails.
    """
    known_dir = target_dir or local_target(recipe)
    if known_dir:
        return _resolve(recipe, known_dir)
    with tempfile.TemporaryDirectory(prefix="config-") as scratch:
        try:
            fetched = recipe.target.fetch(CONFIG_FILES, Path(scratch))
        except OutriderError as error:
            if recipe.speculator.kind != AUTO:
                return recipe, []
            raise OutriderError(
                f"speculator.kind = {AUTO}: the kinds that the target supports are unknown"
                f" ({error}); name them, such as speculator.kind={DEFAULT_KIND}"
            ) from None
        try:
            return _resolve(recipe, fetched)
        except OutriderError as error:  # name the model, not the temporary directory
            raise OutriderError(str(error).replace(str(fetched), recipe.target.model)) from None


def _resolve(recipe: Recipe, target_dir: Path) -> tuple[Recipe, list[str]]:
    """The five steps, in order: each reads what those before it have filled in."""
    check_checkpoint(target_dir)
    target = Target(target_dir, _checked_config(recipe, target_dir))
    # The engine's attention is settled before the layer type of heads, which share its KV cache,
    # and the layer type before the kinds, since a kind with another cache cannot be served.
    recipe = with_target_defaults(recipe, target.config)
    recipe, attention_notes = _with_attention(recipe, target.config)
    recipe = _with_layer_type(recipe, target.config)
    recipe, kind_notes = _with_kinds(recipe, target)
    return recipe, [*attention_notes, *kind_notes, *_notes_on_gpus(recipe, target.config)]


@dataclasses.dataclass(frozen=True)
class Target:
    """A target's directory and the config.json in it."""

    directory: Path
    config: Mapping[str, Any]


def _notes_on_gpus(recipe: Recipe, target_config: Mapping[str, Any]) -> Iterator[str]:
    """Lines about bases with Llama's attention, planned on a CPU for a target with MLA.

    There, vLLM runs without MLA unless the recipe says otherwise; on a GPU, it runs with MLA, and
    the attention backends decide (`mixed_cache_refusal`).
    """
    engine = recipe.serving.engine
    is_set = "VLLM_MLA_DISABLE" in engine.environment
    if is_set or not runs_on_cpu() or not target_config.get("kv_lora_rank"):
        return
    for name in recipe.speculator.kinds:
        speculator = recipe.speculator.of_kinds([name])
        kind = trainable_kind(name)
        config = planned_config(speculator, target_config)
        if warm_directory(speculator) is not None and kind.latent_cache(config) is False:
            yield (
                f"speculator.base = {speculator.base}: {kind.in_words} with Llama's attention,"
                " planned for this CPU, which runs the target without MLA. On a GPU, vLLM may run"
                " it with MLA, and a run there first checks whether such a head can share MLA's KV"
                " cache; VLLM_MLA_DISABLE=1 in serving.engine.environment runs it as planned"
            )


def _checked_config(recipe: Recipe, target_dir: Path) -> Mapping[str, Any]:
    """Reads the target's config.json; refuses unknown architectures and missing keys."""
    path = target_dir / "config.json"
    target_config = read_config(path)
    architecture_of(target_config, f"{recipe.target.model}: config.json")
    check_keys(target_config, path, "every run")
    return target_config


def _with_attention(
    recipe: Recipe, target_config: Mapping[str, Any]
) -> tuple[Recipe, tuple[str, ...]]:
    """Disables MLA where no backend supports the head widths, as for nano R1."""
    engine = recipe.serving.engine
    why = mla_refusal(target_config) if runs_mla(target_config, engine) else None
    if why is None:
        return recipe, ()
    if "VLLM_MLA_DISABLE" in engine.environment:
        raise OutriderError(
            f"serving.engine.environment: VLLM_MLA_DISABLE = 0: {why} Leave the variable out"
        )
    note = f"VLLM_MLA_DISABLE = 1: plain attention for {recipe.target.model}. {why}"
    # vLLM would choose MLA by config.json and fail when it selects a prefill backend.
    environment = engine.environment | {"VLLM_MLA_DISABLE": "1"}
    engine = engine.model_copy(update={"environment": environment})
    serving = recipe.serving.model_copy(update={"engine": engine})
    return recipe.model_copy(update={"serving": serving}), (note,)


def _with_layer_type(recipe: Recipe, target_config: Mapping[str, Any]) -> Recipe:
    """Gives a new head the attention that the engine's KV cache is made for."""
    head = recipe.speculator.head
    if head.layer_type != "auto":
        return recipe
    layer_type = "mla" if runs_mla(target_config, recipe.serving.engine) else "llama"
    head = head.model_copy(update={"layer_type": layer_type})
    speculator = recipe.speculator.model_copy(update={"head": head})
    return recipe.model_copy(update={"speculator": speculator})


def _with_kinds(recipe: Recipe, target: Target) -> tuple[Recipe, tuple[str, ...]]:
    """Checks the kinds that the recipe names, or chooses all that can be trained and served."""
    lookups = installed_lookups() if recipe.eval.lookup == AUTO_LOOKUP else [recipe.eval.lookup]
    # As the base, a lookup is compared with every kind anyway.
    lookups = [lookup for lookup in lookups if lookup != recipe.speculator.base]
    if recipe.speculator.kind != AUTO:
        listed = recipe.speculator.candidates
        if ANY_LOOKUP in listed:
            named = [name for name in listed if name != ANY_LOOKUP]
            recipe = recipe.of_kinds(list(dict.fromkeys((*named, *lookups))))
        _check_kinds(recipe, target)
        return recipe.of_kinds(recipe.speculator.candidates), ()
    refusals = _refused_kinds(recipe, target)
    names = [name for name in trainable_names() if name not in refusals]
    if not names:
        why = main_refusal(refusals, target.config)
        raise OutriderError(f"speculator.kind = {AUTO}: no kind can be trained: {why}")
    names += lookups
    left_out = "".join(f"; not {name}: {why}" for name, why in refusals.items())
    note = f"speculator.kind = {AUTO}: {', '.join(names)}{left_out}"
    return recipe.of_kinds(names), (note,)


def _check_kinds(recipe: Recipe, target: Target) -> None:
    """Raises an `OutriderError` if a kind cannot be trained for the target, or not served."""
    for name in recipe.speculator.candidates:
        kind_named(name).require_installed()  # before capture and training, which take hours
    for name in recipe.speculator.kinds:
        base_dir = warm_directory(recipe.speculator.of_kinds([name]))
        trainable_kind(name).check_target(target.directory, base_dir, config_only=True)
        why = _unserved(recipe, name, target.config)
        if why:
            raise OutriderError(f"speculator.kind = {name}: {why}")


def _refused_kinds(recipe: Recipe, target: Target) -> dict[str, str]:
    """The kinds that cannot be trained for the target, or not served, and why."""
    refusals = unsupported_kinds(recipe.speculator.base, target.directory)
    for name in trainable_names():
        if name in refusals:
            continue
        why = _unserved(recipe, name, target.config)
        if why:
            refusals[name] = why
    return refusals


def _unserved(recipe: Recipe, name: str, target_config: Mapping[str, Any]) -> str | None:
    """Returns why the engine cannot serve the kind; None if it can."""
    kind = trainable_kind(name)
    mla = runs_mla(target_config, recipe.serving.engine)
    if refusal := runner_refusal(kind, recipe.serving.engine):
        return refusal
    config = planned_config(recipe.speculator.of_kinds([name]), target_config)
    needs = kind.latent_cache(config)
    if needs in (None, mla):
        return None
    why = "MLA is switched off for the whole engine"
    if mla:
        head_dim = config.get("head_dim", config["hidden_size"] // config["num_attention_heads"])
        refusal = mixed_cache_refusal(target_config, head_dim)
        if refusal is None:
            return None
        why = refusal.rstrip(".")
    has, engine = ("MLA", "without MLA") if needs else ("Llama's attention", "with MLA")
    is_warm = warm_directory(recipe.speculator.of_kinds([name])) is not None
    # The layer of a head that training starts from is the base's.
    way = "choose another base or kind" if is_warm else "set speculator.head.layer_type to auto"
    return (
        f"{kind.in_words} with {has} cannot be served by an engine that runs this target {engine}"
        f" ({why}); {way}, or set VLLM_MLA_DISABLE to {int(not needs)} in"
        " serving.engine.environment"
    )


def with_target_defaults(recipe: Recipe, target_config: Mapping[str, Any]) -> Recipe:
    """Fills in unset lengths and the learning rate; refuses more positions than the target has.

    Adam's best learning rate for matrices is proportional to 1 / width (muP, Yang et al. 2022):
    1e-3, tuned on nano R1 (width 192), becomes 3e-5 for R1 (width 7168).
    """
    positions = _positions(target_config, recipe.serving.engine)
    engine = _filled(recipe.serving.engine, max_model_len=int(min(positions, MAX_MODEL_LEN)))
    beyond = engine.max_model_len > positions
    if beyond and "VLLM_ALLOW_LONG_MAX_MODEL_LEN" not in engine.environment:
        raise OutriderError(
            f"serving.engine.max_model_len = {engine.max_model_len}: {recipe.target.model} has"
            f" {positions:.0f} positions (max_position_embeddings in its config.json); set at most"
            " that, or raise it in serving.engine.extra_arguments.hf_overrides"
        )
    # One digit: the rule is not more precise, and recipes are written with one.
    one_digit = float(f"{1e-3 * 192 / target_config['hidden_size']:.0e}")
    training = _filled(recipe.training, learning_rate=one_digit, row_tokens=engine.max_model_len)
    serving = recipe.serving.model_copy(update={"engine": engine})
    return recipe.model_copy(update={"training": training, "serving": serving})


def _positions(target_config: Mapping[str, Any], engine: EngineConfig) -> float:
    """Number of positions as vLLM derives it, with the engine's `hf_overrides`."""
    overrides = engine.extra_arguments.get("hf_overrides") or {}
    config = dict(target_config)
    # An override replaces the whole embedding, under either name that transformers has had for it.
    if {"rope_parameters", "rope_scaling"} & overrides.keys():
        for key in ("rope_parameters", "rope_scaling"):
            config.pop(key, None)
    config |= overrides
    rope = rope_of(config)
    positions = config.get("max_position_embeddings", math.inf)
    return (
        positions if rope["rope_type"] in WITH_ALL_POSITIONS else positions * rope.get("factor", 1)
    )


def _filled(section: Any, **defaults: Any) -> Any:
    """Copies a section, with `defaults` for keys that are not set."""
    missing = {key: value for key, value in defaults.items() if key not in section.model_fields_set}
    return section.model_copy(update=missing)
