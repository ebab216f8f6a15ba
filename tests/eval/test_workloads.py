"""Public workloads in the layouts in which they are published."""

import json

import pytest

from outrider.common.errors import OutriderError
from outrider.eval.config import EvalConfig
from outrider.eval.workloads import prompts_of

LAYOUTS = {
    "speed_bench": [
        {"messages": [{"role": "user", "content": f"ask {n}"}], "category": "coding"}
        for n in range(3)
    ],
    "mt_bench": [{"question_id": n, "turns": [f"ask {n}", "and then?"]} for n in range(3)],
    "gsm8k": [{"question": f"ask {n}", "answer": "#### 4"} for n in range(3)],
    "humaneval": [{"task_id": f"HumanEval/{n}", "prompt": f"ask {n}"} for n in range(3)],
}


def written(folder, rows, name="qualitative.jsonl"):
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.mark.parametrize("name", LAYOUTS)
def test_the_first_turns_are_asked_in_a_drawn_order(name, tmp_path):
    path = written(tmp_path, LAYOUTS[name])
    place = tmp_path if name == "speed_bench" else path
    settings = EvalConfig(general={name: str(place)})
    found = prompts_of(settings, name)
    assert sorted(found) == ["ask 0", "ask 1", "ask 2"] and found == prompts_of(settings, name)
    few = settings.model_copy(update={"general_prompts": 2})
    assert len(prompts_of(few, name)) == 2


def test_what_cannot_be_read_names_the_key(tmp_path):
    path = written(tmp_path, LAYOUTS["gsm8k"])
    for name, place, why in (
        ("humaneval", str(path), r"eval.general.humaneval = .*no column 'prompt'; its columns"),
        ("gsm8k", str(tmp_path / "gone.jsonl"), r"eval.general.gsm8k = .*gone.* cannot be loaded"),
        ("speed_bench", None, "must be downloaded by its users"),
    ):
        with pytest.raises(OutriderError, match=why):
            prompts_of(EvalConfig(general={name: place}), name)
