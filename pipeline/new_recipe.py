"""A commented recipe with safe defaults, written for logs and a target.

    path, facts = write_recipe("logs/", target="/models/r1")

It follows from the log and the target's config.json alone: `outrider init` prints both.
"""

import json
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.common.errors import OutriderError, UsageError
from outrider.common.redaction import redact

if TYPE_CHECKING:
    from outrider.pipeline.recipe.recipe import Recipe

FIRST = 5000
"""Rows to read from each file: enough to find formats, sampling and lengths."""

RECIPE = """\
# Written by `outrider init {typed} --target {target}`.
# The first {first:,} rows of each file have {seen}.
#
#   outrider train {file} --dry-run    # what it costs: memory, disk, hours
#   outrider train {file}
#
# `{template}` has the settings for such targets. Keys that are not set here have its values or
# their defaults: docs/reference/basic-keys.md.

extends: {template}

target:
  model: {model}  # {architecture}

traffic:
  path: {path}  # {formats}{chosen}{given}

effort: {effort}  # start with trial: a first verdict in a few hours; thorough: for a release

speculator:
  kind: {kind}  # {reason}
  base: {base}  # {base_reason}
  depth: {depth}  # longest draft, in tokens

training:
  processes: {processes}  # GPUs that train

serving:
  engine:
    tensor_parallel: {tensor_parallel}  # GPUs that share the target; --dry-run checks yours
{limit}{seats}
eval:
  concurrency: {concurrency}  # {load}; the first value decides
  max_tokens: {timed}  # longest timed response; nine in ten of the log are shorter
  verification_max_tokens: {verified}  # longest checked response; 99 of 100 of the log are shorter
  task: null  # your check of a response: `module:function`
"""


OWN = (
    "the target's own layer; other kinds: docs/explanation/kinds.md",
    "compared with the target's own layer as it is",
)
FROM_SCRATCH = (
    "a head from scratch, since the target has no speculator that can be trained",
    "compared with vLLM's {lookup}; name the directory of a head that is in use",
)
"""Comments on `speculator.kind` and `speculator.base`."""


def write_recipe(
    logs: str,
    target: str,
    to: Path | None = None,
    effort: str | None = None,
    force: bool = False,
    *,
    traffic: Sequence[str] = (),
) -> tuple[Path, dict[str, Any]]:
    """Writes the recipe; returns its path and what the log contains.

    `traffic` has overrides of the recipe's section `traffic`, such as `traffic.model=r1`. The
    recipe follows from the log and the target alone, not from this machine's GPUs or vLLM. Raises
    an `OutriderError` if the logs or the target cannot be used for training, or, unless `force`,
    if the target has probably not written the logs.
    """
    from outrider.pipeline.paths import check_paths
    from outrider.pipeline.recipe.load import load_overrides, load_recipe
    from outrider.speculators.kinds import DEFAULT_LOOKUP, kind_named

    path = to or _default_path(logs)
    if path.exists():
        raise OutriderError(f"{path}: already exists; choose another file with --to")
    if not path.parent.is_dir():
        raise OutriderError(f"{path}: no folder {path.parent}; create it, or change --to")
    words = [f"traffic.path={json.dumps(logs)}", f"target.model={json.dumps(target)}"]
    for word in traffic:
        if not word.startswith("traffic.") or word.startswith("traffic.path"):
            raise UsageError(
                f"{redact(word)}: init takes keys of the logs, such as traffic.model=NAME; set"
                " others in the recipe that it writes"
            )
    recipe = load_overrides([*words, *traffic]).recipe
    check_paths(recipe)

    recipe, config = _with_speculator(recipe)
    facts = _facts(recipe)
    if facts["wrong_target"] and not force:
        raise OutriderError(
            f"{target}: {facts['wrong_target']}. Nothing was written; --force writes the recipe"
            " nevertheless"
        )
    base = recipe.speculator.base
    reason, base_reason = OWN if base is None else FROM_SCRATCH
    base_reason = base_reason.format(lookup=kind_named(DEFAULT_LOOKUP).in_words)
    facts["speculator"] = f"speculator.kind = {recipe.speculator.only_kind}: {reason}"
    if base is not None:
        facts["speculator"] += f"; speculator.base = {base}: {base_reason}"
    # In the current directory, paths stay as they were typed; elsewhere they are absolute.
    near = path.resolve().parent == Path.cwd()
    values = {
        "file": path,
        "typed": " ".join([logs, *traffic]),
        "target": target,
        "reason": reason,
        "base_reason": base_reason,
        "model": _yaml(target if near else recipe.target.model),
        "path": _yaml(logs if near else recipe.traffic.path),
        "given": _given(recipe),
    }
    path.write_text(_recipe_text(values, recipe, config, facts, effort=effort), encoding="utf-8")
    # A recipe that does not load is a fault of the template: fail here, not at the first run.
    load_recipe(str(path))
    return path, facts


def _recipe_text(
    values: dict[str, Any],
    recipe: "Recipe",
    config: Mapping[str, Any],
    facts: Mapping[str, Any],
    *,
    effort: str | None,
) -> str:
    """Fills in the template; `values` are those that follow from the command line."""
    from outrider.pipeline.recipe.load import load_recipe

    template = _template(config)
    shipped = load_recipe(template).recipe
    text = RECIPE.format(
        **values,
        first=FIRST,
        template=template,
        effort=effort or shipped.effort,
        kind=recipe.speculator.only_kind,
        base=recipe.speculator.base or "null",
        **_values(recipe, config, facts, shipped),
    )
    # Aligns the comments in one column.
    return re.sub(
        r"^( *[\w: ]+\S*(?:, \S+)*)  # ", lambda row: f"{row[1]:<34}  # ", text, flags=re.MULTILINE
    )


def _given(recipe: "Recipe") -> str:
    """Lines of the section `traffic` with the keys of the command line."""
    import yaml

    keys = recipe.traffic.model_dump(mode="json", exclude_unset=True, exclude={"path"})
    lines = (
        yaml.safe_dump({key: value}, default_flow_style=True, width=math.inf, allow_unicode=True)
        for key, value in keys.items()
    )
    return "".join(f"\n  {line.strip()[1:-1]}" for line in lines)


def _default_path(logs: str) -> Path:
    """A file in the current directory with the log's name."""
    stem = Path(logs).name.partition(".")[0]
    name = re.sub(r"[^A-Za-z0-9_-]+", "_", stem).strip("_-")
    return Path(f"{name or 'mine'}.yaml")


def _with_speculator(recipe: "Recipe") -> tuple["Recipe", Mapping[str, Any]]:
    """Returns the recipe with kind, base and lengths, and the target's config.json."""
    from outrider.pipeline.plan.training_cost import target_config
    from outrider.pipeline.preflight import local_target
    from outrider.pipeline.recipe.for_target import resolve_for_target
    from outrider.speculators.base import kind_and_base
    from outrider.speculators.checkpoints.architectures import architecture_of

    directory = local_target(recipe)
    config, source = target_config(recipe, directory)
    if config is None:
        raise OutriderError(str(source))
    architecture_of(config, source)
    with tempfile.TemporaryDirectory(prefix="config-") as scratch:
        if directory is None:
            directory = Path(scratch)
            # The functions below read a directory; a hub model may have none here.
            (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")
        kind, base = kind_and_base(directory)
        speculator = recipe.speculator.of_kinds([kind]).model_copy(update={"base": base})
        recipe = recipe.model_copy(update={"speculator": speculator})
        resolved, _ = resolve_for_target(recipe, directory)
        return resolved, config


def _facts(recipe: "Recipe") -> dict[str, Any]:
    """Inspects the log's first rows, keeping only the most frequent model's."""
    from outrider.pipeline.inspection import inspect_recipe

    facts, _ = inspect_recipe(recipe, FIRST, 0)
    models = [name for name in facts["models"] if name]
    if len(models) > 1:
        traffic = recipe.traffic.model_copy(update={"model": models[0]})
        one, _ = inspect_recipe(recipe.model_copy(update={"traffic": traffic}), FIRST, 0)
        # The comment in the recipe lists the other models too.
        facts = {**one, "models": facts["models"]}
    if facts["problems"]:
        examples = facts["reject_examples"].items()
        seen = [
            f"{reason}, {example['place']}: {example['detail']}" for reason, example in examples
        ]
        raise OutriderError("\n".join([*seen, *facts["problems"]]))
    if facts["split"] is None:
        facts["advice"].append(
            "too few sessions for training, validation and held-out parts: collect more traffic"
        )
    return facts


def _template(config: Mapping[str, Any]) -> str:
    """Chooses the shipped template for targets of this architecture and size."""
    from outrider.speculators.checkpoints.architectures import architecture_of

    if architecture_of(config, "config.json").layer is None:
        return "r1_distill/template"
    # 7168 is the hidden size of DeepSeek-V3 and R1.
    return "r1/template" if config["hidden_size"] == 7168 else "template"


def _values(
    recipe: "Recipe", config: Mapping[str, Any], facts: Mapping[str, Any], template: "Recipe"
) -> dict[str, Any]:
    """Values for the recipe template, from the log and the target."""
    from outrider.data.ingest.traffic_facts import pluralize
    from outrider.eval.config import LONGEST_TIMED, round_up_tokens
    from outrider.pipeline.plan.target_size import target_size
    from outrider.pipeline.plan.training_cost import ASSUMED_GPU

    models = [name for name in facts["models"] if name]
    formats = ", ".join(f"{name} {count:,}" for name, count in facts["formats"].items())
    engine = template.serving.engine
    ranks = target_size(config).smallest_tensor_parallel(engine, int(ASSUMED_GPU))
    positions = recipe.serving.engine.max_model_len
    limit = ""
    if "max_model_len" in engine.model_fields_set:
        if positions < engine.max_model_len:
            limit = f"    max_model_len: {positions}  # the target's number of positions\n"
        positions = min(positions, engine.max_model_len)
    lengths = facts["lengths"]["completion"]
    longest = positions // 2  # leaves room for the prompt
    exchanges = pluralize(facts["exchanges"], "exchange")
    sessions = pluralize(facts["sessions"]["distinct"], "session")
    tenants = pluralize(len(facts["tenants"]), "tenant")
    chosen = ""
    if len(models) > 1:
        chosen = f"\n  model: {_yaml(models[0])}  # the log also has {json.dumps(models[1:])}"
    return {
        "seen": f"{exchanges} of {sessions} and {tenants}",
        "architecture": config["architectures"][0],
        "formats": formats,
        "chosen": chosen,
        "depth": template.speculator.depth,
        "processes": template.training.processes,
        "tensor_parallel": ranks or engine.tensor_parallel,
        "limit": limit,
        **_load_values(facts["load"], template),
        "timed": min(round_up_tokens(lengths["p90"]), LONGEST_TIMED, longest),
        "verified": min(round_up_tokens(lengths["p99"]), 8192, longest),
    }


LEAST_SEATS = 8
"""Smallest `max_num_seqs` that is written: a quiet log says little about bursts."""


def _load_values(load: Mapping[str, Any] | None, template: "Recipe") -> dict[str, Any]:
    """Concurrencies and the engine's batch size from the log's load, else from the template."""
    from outrider.data.ingest.load import measured_sizes

    if load is None:
        usual = "the endpoint's usual concurrent requests"
        return {"concurrency": template.eval.concurrency, "load": usual, "seats": ""}
    seats = max(LEAST_SEATS, 2 ** math.ceil(math.log2(2 * load["max"])))
    return {
        "concurrency": measured_sizes(load),
        "load": "at most so many at a time in 50, 90 and 99 % of the log's busy time",
        "seats": f"    max_num_seqs: {seats}  # at least twice the log's peak, {load['max']}\n",
    }


def _yaml(value: Any) -> str:
    """Formats a value as YAML; names and paths are not quoted."""
    bare = isinstance(value, str) and re.fullmatch(r"[A-Za-z~./][\w./~+-]*", value)
    return str(value) if bare else json.dumps(value, ensure_ascii=False)
