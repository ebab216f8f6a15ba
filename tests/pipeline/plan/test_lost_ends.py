"""The plan counts what capture, training and evaluation would cut or not send."""

from pathlib import Path

from datasets import Dataset

from outrider.common.files import write_json
from outrider.pipeline.plan.traffic import lost_ends_text
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.run_dir import RunDirectory


def test_each_stage_names_its_key_and_counts_what_it_loses(tmp_path: Path) -> None:
    words = ("serving.engine.max_model_len=1001", "training.row_tokens=400", "eval.max_tokens=600")
    recipe = load_recipe("resume_screening", list(words)).recipe
    run = RunDirectory.of(recipe, tmp_path)
    assert lost_ends_text("capture", run, recipe) == "", "before the split nothing is known"
    lengths, starts = [300, 500, 1200, 900, 1000], [100, 100, 1100, 399, 500]
    columns = {"sequence_id": list("abcde"), "completion_start": starts}
    table = Dataset.from_dict(columns | {"token_ids": [[7] * length for length in lengths]})
    table.save_to_disk(str(run.sequences))
    parts = {"train": ["a", "b", "c"], "validation": ["d"], "heldout": ["e"]}
    write_json(run.split / "parts.json", parts)
    write_json(run.stage_record("split"), {"result": {"train": {}}})
    assert lost_ends_text("capture", run, recipe) == (
        "serving.engine.max_model_len = 1,001: of 5 responses 1 are left out; raise it by 200 to"
        " keep all"
    )
    assert lost_ends_text("train", run, recipe) == (
        "training.row_tokens = 400: of 3 responses 1 lose their end (100 tokens) and 1 are left"
        " out; raise it by 500 to keep all"
    )
    text = lost_ends_text("evaluate", run, recipe)
    assert text.startswith("serving.engine.max_model_len: of 1 held-out prompts 1 are not sent")
