"""The export bundle: a speculator for vLLM, its command, and its evidence.

    drafting = Drafting(Speculator.from_name(directory), k=3)
    export_bundle(drafting, target, engine, evidence={...}, out_dir="runs/NAME/bundle")
    verify_bundle(bundle_dir, target, engine, prompts, Sampling(), max_tokens=256, ...)

Through `--speculative-config`, vLLM reads `config.json` and the speculator's safetensors.
Subfolders hold the speculator in other formats, if its kind has any. A lookup has none of these
files, but may have its history, `history.npz`, which is customer text.
`speculation_profile.json` has the acceptance by position, if measured. `serve.sh` starts the server
with the evaluated flags. `bundle.json` has k, every file's SHA-256, and the evidence.
"""

import dataclasses
import itertools
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from outrider.serving.bundle.bundle_digest import MANIFEST, bundle_digest, list_files, read_manifest
from outrider.serving.bundle.bundle_places import local_bundle, put_bundle, staging_folder
from outrider.serving.client import Sampling, complete
from outrider.serving.config import EMBEDDED_TARGETS, EngineConfig, TargetConfig
from outrider.serving.hooked import HOOKED
from outrider.serving.serve_flags import exported_environment, serve_entry
from outrider.serving.server import Server
from outrider.serving.speculator import Drafting, Speculator
from outrider.serving.vllm_arguments import engine_arguments, engine_environment, flags_of
from outrider.serving.vllm_version import runs_on_cpu, vllm_version
from outrider.speculators.checkpoints.target_fingerprint import (
    KEY,
    check_bundle_target,
    target_fingerprint,
)
from outrider.speculators.kinds import KINDS
from outrider.speculators.kinds.protocol import TrainableKind
from outrider.speculators.lookup_history import HISTORY_FILE, read_history

PROFILE = "speculation_profile.json"

_HERE = Path("@HERE@")
"""Placeholder for the bundle's directory; serve.sh finds the real path when it runs."""


def export_bundle(
    drafting: Drafting,
    target: TargetConfig,
    engine: EngineConfig,
    *,
    evidence: dict[str, Any],
    out_dir: str | Path,
    other_formats: bool = True,
    profile: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Writes the bundle to a directory or address; returns its manifest.

    A local bundle is published atomically; at an fsspec URL (bundle_places.py) it is complete once
    it has bundle.json. `evidence` (the recipe's digest, the report's figures) is stored unchanged.
    """
    directory = drafting.speculator.directory
    files = _served_files(drafting.speculator)
    with staging_folder(out_dir) as folder:
        stage = folder / "bundle"
        stage.mkdir()
        for file in files:
            shutil.copyfile(file, stage / file.name)
        if (stage / HISTORY_FILE).exists():
            (stage / HISTORY_FILE).chmod(0o600)
        (stage / "serve.sh").write_text(serve_script(target, engine, drafting), encoding="utf-8")
        (stage / "serve.sh").chmod(0o755)
        trainable = KINDS[drafting.speculator.kind]
        if other_formats and directory is not None and isinstance(trainable, TrainableKind):
            # A format may name its target; embedded targets have no public name, only a path.
            name = target.directory() if target.model in EMBEDDED_TARGETS else target.model
            trainable.write_other_formats(
                directory,
                target_dir=target.directory(),
                target=str(name),
                drafts=drafting.k,
                out_dir=stage,
            )
        if profile is not None:
            write_json(stage / PROFILE, profile)
        manifest = {
            **list_files(stage),
            **drafting.as_manifest(),
            "target": target.model_dump(),
            KEY: target_fingerprint(target.directory()),
            "vllm": vllm_version(),
            "serve": serve_entry(target, engine),
            "evidence": evidence,
        }
        if HISTORY_FILE in manifest["files"]:
            manifest["history"] = read_history(stage / HISTORY_FILE).facts
        write_json(stage / MANIFEST, manifest)
        put_bundle(stage, out_dir)
    return manifest


def _served_files(speculator: Speculator) -> list[Path]:
    """The files that an engine reads: weights and their config.json, or a lookup's history."""
    directory = speculator.directory
    if directory is None:
        return []
    if not speculator.drafter_kind.has_weights:
        return [directory / HISTORY_FILE]
    weights = sorted(directory.glob("*.safetensors"))
    if not weights:
        raise OutriderError(
            f"{directory}: no *.safetensors; train first, or give a speculator's directory"
        )
    index = sorted(directory.glob("*.safetensors.index.json"))
    return [directory / "config.json", *weights, *index]


def verify_bundle(
    location: str | Path,
    target: TargetConfig,
    engine: EngineConfig,
    *,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    max_tokens: int,
    expected: float,
    tolerance: float,
    log_path: Path,
    concurrency: int = 1,
    k: int | None = None,
    fields: Sequence[Mapping[str, Any]] | None = None,
) -> dict[str, Any]:
    """Serves the bundle and checks its acceptance length against the evaluation.

    The flags are those of serve.sh. `expected` must come from the same prompts, fields and
    sampling; `tolerance` is relative. If `k` differs from the schedule's k at batch size 1, it
    replaces the schedule. Raises an `OutriderError` if the difference exceeds `tolerance` or a file
    has changed.
    """
    with local_bundle(location) as directory:
        bundle_digest(directory)
        manifest = read_manifest(directory)
        check_bundle_target(manifest, location, target.directory())
        drafting = Drafting.from_manifest(manifest, directory)
        if k is not None and drafting.k_per_batch_size and drafting.k_per_batch_size[0][2] != k:
            drafting = dataclasses.replace(drafting, k=k, k_per_batch_size=None)
        print("self-check: starting the bundle's server", file=sys.stderr, flush=True)
        with Server(target, engine, drafting, log_path=log_path) as server:
            print(f"self-check: {len(prompts)} prompts", file=sys.stderr, flush=True)
            before = server.counters()
            complete(
                url=server.url,
                model=server.model_name,
                prompts=prompts,
                fields=fields,
                sampling=sampling,
                max_tokens=max_tokens,
                concurrency=concurrency,
            )
            counters = server.counters() - before
    difference = counters.acceptance_length / expected - 1
    if abs(difference) > tolerance:
        raise OutriderError(
            f"{location}: served from the bundle, the acceptance length over {len(prompts)} prompts"
            f" is {counters.acceptance_length:.3f}, {difference:+.1%} from the evaluated"
            f" {expected:.3f} (tolerance {tolerance:.1%}); the weights or flags in the bundle are"
            " not those of the evaluation"
        )
    return {
        "prompts": len(prompts),
        "drafts": counters.drafts,
        "acceptance_length": counters.acceptance_length,
        "expected": expected,
        "relative_difference": difference,
        "tolerance": tolerance,
    }


def speculation_profile(
    method: str,
    target: TargetConfig,
    *,
    marginal: Sequence[float],
    intervals: Sequence[tuple[float, float] | None],
    lengths: Mapping[int, float],
    depth: int,
    conditions: dict[str, Any],
) -> dict[str, Any]:
    """Builds speculation_profile.json from marginal rates and acceptance lengths.

    The fields are those of NVIDIA Model-Optimizer's proposal (schema 1.0, pull requests 2247 and
    2313), so that simulators and vLLM's synthetic acceptance can read it. Outrider adds `intervals`
    and the content of `measurement_conditions`. Draft positions start at 1; a step's acceptance
    length counts its accepted drafts and the target's own token.

    `intervals` are 95 % intervals of the marginal rates, None where they are unavailable.
    `lengths` has the acceptance length for each number of drafts. In the last step of
    a response, the target's own token may be missing from these lengths.
    """
    one_block = KINDS[method].one_block
    k = len(marginal)
    # Share of steps that accept at least 0, 1, ..., k drafts, and none that accept more.
    reached = [1.0, *marginal, 0.0]
    pairs = [*itertools.pairwise(reached)]
    conditional = [share / before if before else 0.0 for before, share in pairs[:k]]
    histogram = {length: before - share for length, (before, share) in enumerate(pairs, start=1)}
    # Profiles are published, so the model's name replaces a local path.
    name = Path(target.model).name if Path(target.model).is_dir() else target.model
    return {
        "schema_version": "1.0",
        "measured": True,
        "method": method,
        "target_model": {"model": name, "revision": target.revision},
        "num_speculative_tokens": k,
        "max_supported_k": depth,
        # Set only for a speculator whose drafts depend on k.
        "block_size": k if one_block else None,
        "verification_method": "longest_prefix",
        # Probability that the draft is accepted if all before it were, by position.
        "conditional_accept_rates": conditional,
        # Share of steps that accept all drafts up to each position.
        "marginal_accept_rates": list(marginal),
        "intervals": list(intervals),
        "mean_accept_length": 1 + sum(marginal),
        "accept_length_model": "measured_per_k" if one_block else "chain_analytic",
        "accept_length_by_k": dict(lengths),
        # Acceptance length -> share of steps.
        "acceptance_length_histogram": histogram,
        "measurement_conditions": conditions,
    }


_SERVE_SH = """\
#!/usr/bin/env bash
# Serves the target with this speculator and the evaluated flags. Arguments are appended
# and override them.
# Variables: TARGET (another copy of the target), HOST, PORT, PYTHON (a Python that has
# Outrider installed).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${PYTHON:-python3}"
{% if embedded %}
target="${TARGET:-$("$python" -P -c {{ find_target }})}"
{% else %}
target={{ model }}
target="${TARGET:-$target}"
{% endif %}
{% for name, value in environment %}
export {{ name }}={{ value }}
{% endfor %}
{% if preloads %}
openmp="$("$python" -P -c 'import sys; print(sys.prefix)')/lib/libiomp5.so"
if [[ -f "$openmp" && "${LD_PRELOAD:-}" != *libgomp* ]]; then
  export LD_PRELOAD="${LD_PRELOAD:+$LD_PRELOAD:}$openmp"
fi
{% endif %}
exec {{ command }} serve "$target" \\
{% for flag in flags %}
  {{ flag }} \\
{% endfor %}
  --host "${HOST:-127.0.0.1}" --port "${PORT:-8000}" "$@"
"""


def serve_script(target: TargetConfig, engine: EngineConfig, drafting: Drafting) -> str:
    """Renders serve.sh: evaluated flags and environment, paths resolved at run time."""
    import jinja2

    speculator = drafting.speculator
    here = dataclasses.replace(speculator, directory=speculator.directory and _HERE)
    arguments = engine_arguments(target, engine, dataclasses.replace(drafting, speculator=here))
    del arguments["model"]
    embedded = target.model in EMBEDDED_TARGETS
    if not embedded and not Path(target.model).expanduser().is_dir():
        arguments["revision"] = target.revision
    arguments["served_model_name"] = Path(target.model).name
    environment = exported_environment(engine) | HOOKED
    find_target = (
        "from outrider.serving.config import TargetConfig; "
        f'print(TargetConfig(model="{target.model}").directory())'
    )
    # shlex quotes the placeholder: this ends the quotes, lets the shell expand, and opens them.
    here_in_quotes = "'\"$here\"'"
    flags = [shlex.join(flag).replace(str(_HERE), here_in_quotes) for flag in flags_of(arguments)]
    variables = [(name, shlex.quote(value)) for name, value in sorted(environment.items())]
    command = '"$python" -P -m outrider.serving.vllm_command' if runs_on_cpu() else "vllm"
    templates = jinja2.Environment(
        trim_blocks=True, keep_trailing_newline=True, undefined=jinja2.StrictUndefined
    )
    return templates.from_string(_SERVE_SH).render(
        embedded=embedded,
        find_target=shlex.quote(find_target),
        model=shlex.quote(target.model),
        environment=variables,
        preloads="LD_PRELOAD" in engine_environment(engine),
        command=command,
        flags=flags,
    )
