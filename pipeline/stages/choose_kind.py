"""Choose_kind: which of several trained kinds is evaluated, by exact replay and timed steps.

Only in runs of several kinds, between train and evaluate.
"""

from typing import Any

from outrider.common.files import write_json
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stage import Options, Stage
from outrider.pipeline.stages.evaluate import context_of_kind, evaluation_settings
from outrider.pipeline.stages.sources import target_and_base_digests


def _work(run: RunDirectory, recipe: Recipe, options: Options) -> dict[str, Any]:
    from outrider.eval.choose_kind import choose_kind
    from outrider.speculators.checkpoints.safetensors_headers import tensor_headers

    contexts, facts = {}, {}
    for kind in recipe.speculator.kinds:
        contexts[kind] = context_of_kind(run, recipe, kind)
        speculator = run.of_kind(kind).speculator
        headers = tensor_headers(speculator).values()
        record = run.read_record(f"train_{kind}") or {}
        facts[kind] = {
            "parameters": sum(header.floats for header in headers),
            "training_minutes": record["seconds"] / 60,
        }
    choice = choose_kind(contexts, facts)
    write_json(run.kind_choice, choice.model_dump(mode="json"))
    main = str(recipe.eval.main)
    return {
        "chosen": choice.chosen,
        "tokens_per_s": {each.kind: each.tokens_per_s(main) for each in choice.kinds},
    }


CHOOSE_KIND = Stage(
    name="choose_kind",
    version=1,
    needs=("split", "capture", "train"),
    settings=evaluation_settings,
    sources=target_and_base_digests,
    work=_work,
    reads=lambda run: (run.sequences, run.features / "manifest.json"),
    artifact=lambda run: run.kind_choice,
    identity=lambda run: run.kind_choice,
    handles_text=True,
    starts_engines=True,
)
