"""The bundles of `make live`: a trained speculator, a changed copy, and one full of noise.

bundles = demo_bundles(Path("runs"), say=print)
"""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.common.child_process import in_child
from outrider.pipeline.attempt import attempt, open_run

if TYPE_CHECKING:
    from outrider.pipeline.recipe.recipe import Recipe
    from outrider.pipeline.run_dir import RunDirectory

K = 4
"""Drafts per step of all replicas."""

RECIPE = (
    "name=live",
    f"speculator.depth={K}",
    "split.max_train_sequences=240",
    "split.max_validation_sequences=24",
    "split.max_heldout_sequences=200",
    "eval.replay_sequences=48",
)
"""The résumé recipe with fewer sequences: a layer that is better than the base in two minutes."""

NOISE = 1.0
"""Of the bad bundle, relative to the spread of each tensor."""

_MAX_TOKENS = 160


@dataclasses.dataclass(frozen=True)
class DemoBundles:
    """What is deployed, and what the users ask."""

    good: Path
    changed: Path
    """The good one after its weights were changed: refused."""
    bad: Path
    requests: list[dict[str, Any]]
    """Held-out requests, for /v1/completions."""
    model: str


def demo_bundles(runs: Path, say: Callable[[str], None]) -> DemoBundles:
    """Trains, if that was not done before, and writes the bundles."""
    from outrider.data.sequences import load_sequences
    from outrider.pipeline.stages.sources import parts_in_use
    from outrider.serving.bundle.bundle import export_bundle

    loaded, run = open_run("resume_screening", RECIPE, runs)
    recipe = loaded.recipe
    with attempt(loaded, run) as go:
        go(["ingest", "split", "capture", "train"], {})
        evidence = replayed(run, recipe, say)
    folder = run.root / "live"
    shutil.rmtree(folder, ignore_errors=True)

    def export(speculator: Path, name: str, evidence: dict[str, Any]) -> Path:
        serving = recipe.speculative_serving()
        out = folder / name
        export_bundle(speculator, recipe.target, serving, K, None, evidence, out, False)
        return out

    good = export(run.speculator, "good", evidence)
    in_child(write_noise, run.speculator, recipe.target.directory(), folder / "noise", NOISE)
    bad = export(folder / "noise", "bad", {})
    changed = folder / "changed"
    shutil.copytree(good, changed)
    with (changed / "model.safetensors").open("r+b") as weights:
        weights.seek(-1, 2)
        last = weights.read(1)
        weights.seek(-1, 2)
        weights.write(bytes([last[0] ^ 1]))
    heldout = load_sequences(run.sequences, parts_in_use(run)["heldout"])
    requests = [
        {
            "prompt": list(row["token_ids"][: row["completion_start"]]),
            "temperature": row["temperature"],
            "top_p": row["top_p"],
            "max_tokens": _MAX_TOKENS,
        }
        for row in heldout
    ]
    return DemoBundles(good, changed, bad, requests, Path(recipe.target.model).name)


def replayed(run: "RunDirectory", recipe: "Recipe", say: Callable[[str], None]) -> dict[str, Any]:
    """The evidence of exact replay on held-out traffic, as an evaluation's bundle has it."""
    from outrider.eval.replay.heldout_replay import replay_drafters
    from outrider.eval.replay.replay import compare
    from outrider.pipeline.stages.evaluate import evaluation_context

    context = evaluation_context(run, recipe, str(run.speculator), run.evaluation, run.root)
    sums = replay_drafters(context, "heldout")
    found = compare(sums["base"], sums["custom"], K)
    values = {name: found[name].value for name in ("base", "custom")}
    ratio = found["ratio"]
    say(
        f"exact replay, {len(sums['base'].sequence_ids)} held-out responses, K = {K}: "
        + ", ".join(f"{name} {value:.2f}" for name, value in values.items())
        + " tokens per step"
    )
    return {
        "k": {"base": K, "custom": K},
        "acceptance_length": {
            **values,
            "ratio": ratio.value,
            "ratio_ci95": [ratio.low, ratio.high],
        },
    }


def write_noise(speculator: Path, target: Path, out: Path, noise: float) -> None:
    """A speculator with noise added to its weights: valid, and of no use."""
    import torch

    from outrider.speculators.kinds import trainable_kind_of
    from outrider.speculators.kinds.protocol import Origin

    kind = trainable_kind_of(speculator)
    generator = torch.Generator().manual_seed(0)
    changed = []
    for name, tensor in kind.tensors(speculator):
        if tensor.dim() > 1:
            spread = noise * float(tensor.std())
            tensor = tensor + spread * torch.randn(tensor.shape, generator=generator)
        changed.append((name, tensor))
    kind.write(changed, Origin(target, speculator), out)
