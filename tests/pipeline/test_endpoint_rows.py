"""`evaluate-speculator --endpoint` measures the rows that the pipeline's evaluation measures."""

import pytest
from datasets import Dataset

from outrider.cli.evaluate_speculator import endpoint_requests
from outrider.common.files import write_json
from outrider.data.sequences import load_sequences
from outrider.eval.context import EvaluationContext, EvaluationData, EvaluationFolders
from outrider.eval.evaluate import heldout_requests
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.sources import has_quarantine, parts_in_use
from outrider.serving.speculator import Speculator

ASIDE = {"q3", "q7"}


@pytest.fixture
def run(tmp_path) -> RunDirectory:
    """A run with 20 held-out sequences, of which the capture put two aside."""
    run = RunDirectory(tmp_path / "run")
    rows = [
        {
            "sequence_id": f"q{number}",
            "session": f"s{number}",
            "user": "",
            "token_ids": [*range(2, 8 + number), 9, 9],
            "completion_start": 6 + number,
            # Most of those that are put aside are sampled in another way.
            "temperature": 1.0 if f"q{number}" in ASIDE else 0.6,
            "top_p": 0.95,
            "top_k": 0,
            "prompt_text": f"prompt {number}",
        }
        for number in range(20)
    ]
    Dataset.from_list(rows).save_to_disk(run.sequences)
    ids = [row["sequence_id"] for row in rows]
    parts = {"train": ["t"], "validation": ["v"], "heldout": ids}
    write_json(run.split / "parts.json", parts)
    return run


def test_the_endpoint_s_rows_are_the_pipeline_s(run, nano_r1):
    recipe = load_recipe("resume_screening", [f"target.model={nano_r1}"]).recipe
    assert not has_quarantine(run)
    everything, _ = endpoint_requests(recipe, run)
    assert {prompt.sequence_id for prompt in everything} == {f"q{number}" for number in range(20)}

    write_json(run.features / "quarantine.json", {"sequences": dict.fromkeys(ASIDE, "scrambled")})
    context = EvaluationContext(
        recipe=recipe.name,
        target=recipe.target,
        serving=recipe.serving,
        settings=recipe.eval,
        depth=recipe.speculator.depth,
        speculators=dict.fromkeys(("base", "custom"), Speculator.named(nano_r1)),
        data=EvaluationData(run.sequences, parts_in_use(run)),
        folders=EvaluationFolders(*[run.root] * 4),
    )
    heldout = load_sequences(context.data.sequences, context.data.parts["heldout"])
    requests = heldout_requests(context, heldout)
    prompts, sampling = endpoint_requests(recipe, run)
    assert [prompt.sequence_id for prompt in prompts] == [
        prompt.sequence_id for prompt in requests.timed
    ]
    assert not ASIDE & {prompt.sequence_id for prompt in prompts}
    assert len(prompts) == 18 and sampling == requests.sampling
