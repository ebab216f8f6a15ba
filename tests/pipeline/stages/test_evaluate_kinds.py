"""Choose_kind and evaluate in a run of two real kinds: replays, choice, and what is published."""

import shutil
from typing import Any

import pytest
import torch

from outrider.common.files import read_json, write_json
from outrider.eval import choose_kind as choose_kind_module
from outrider.eval.bench.step_times import StepTimes
from outrider.eval.context import EvaluationContext
from outrider.eval.results.report import Report
from outrider.eval.results.sections import KindSpeed
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.runner import perform_stage
from outrider.pipeline.stages.evaluate import CHOOSE_KIND, EVALUATE_KINDS
from outrider.speculators.kinds.mtp.checkpoint import load_mtp
from tests.eagle3_head import write_eagle3_head
from tests.eval.sample_results import sample_kinds, sample_results, sample_steps
from tests.pipeline.test_kinds import captured_run
from tests.tiny import save_drafter

KINDS = ("mtp", "eagle3")
WORDS = [
    "speculator.kind=[mtp,eagle3,ngram]",
    "speculator.depth=4",
    "speculator.head.layers=[1,2]",
    "eval.engine_modes=[eager]",
    "eval.concurrency=[1,4,8]",
    "eval.measure=full",
    "eval.repeats=3",
    "eval.requests=4",
    "eval.task=null",
    "eval.max_tokens=32",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[RunDirectory, Recipe]:
    """A run whose kinds are trained."""
    target, run = captured_run(tmp_path_factory.mktemp("kinds"))
    recipe = load_recipe("resume_screening", [f"target.model={target}", *WORDS]).recipe
    layer = load_mtp(target)
    with torch.no_grad():
        layer.eh_proj.weight.add_(0.01)
    save_drafter(layer, target, run.of_kind("mtp").speculator)
    write_eagle3_head(target, run.of_kind("eagle3").speculator, layers=(1, 2))
    for kind in KINDS:
        write_json(run.stage_record(f"train_{kind}"), {"seconds": 90, "result": {}})
        line = '{"step": 0, "validation_acceptance_length": [1.5, 2.0]}\n'
        run.of_kind(kind).metrics.write_text(line)
    return run, recipe


@pytest.mark.parametrize("step_s", [10.0, 1e-6])
def test_the_fastest_kind_is_published_and_evaluated(run, monkeypatch, step_s) -> None:
    """The random heads accept little: lookup is beaten only where its steps are slow."""
    directory, recipe = run
    directory.begin_attempt(recipe, (), ["train-speculator"])
    shutil.rmtree(directory.root / "evaluation", ignore_errors=True)
    seconds = {kind: sample_steps()[kind] for kind in KINDS}
    seconds |= {
        "ngram": {1: dict.fromkeys((2, 4, 8, 24), step_s)},
        "base": seconds["mtp"],
        "none": {1: {0: 1e-7}},
    }
    monkeypatch.setattr(choose_kind_module, "_time_kinds", lambda *_: StepTimes(seconds=seconds))
    perform_stage(CHOOSE_KIND, directory, recipe, {})
    choice = [KindSpeed.model_validate(each) for each in read_json(directory.kind_choice)]
    speeds = {each.kind: each.tokens_per_s(1) for each in choice}
    chosen = choice[0].kind
    assert set(speeds) == {*KINDS, "ngram", "base", "none"}
    # No speculation is the fastest here, but only shown: it is not a speculator to evaluate.
    assert chosen == max({*KINDS, "ngram"}, key=speeds.get)
    assert max(speeds, key=speeds.get) == choice[1].kind == "none" and choice[1].k == 0
    assert (chosen == "ngram") == (step_s < 1)
    assert directory.result_of("choose_kind") == {"chosen": chosen, "tokens_per_s": speeds}
    facts = {each.kind: each for each in choice}
    assert facts["ngram"].parameters == 0 and facts["ngram"].over_lookup is None
    for kind in KINDS:
        assert facts[kind].training_minutes == 1.5 and facts[kind].parameters > 1000
        assert (facts[kind].over_lookup.value > 1) == (step_s > 1)

    def evaluated(context: EvaluationContext) -> dict[str, Any]:
        """The evaluation itself: tests/eval/test_evaluate.py."""
        assert list(context.kinds) == choice and context.folders.out == directory.evaluation
        assert context.folders.report == directory.root
        assert context.speculators["custom"].kind == chosen
        return {"verdict": "ship", "kind": chosen}

    monkeypatch.setattr("outrider.eval.evaluate.run_evaluation", evaluated)
    perform_stage(EVALUATE_KINDS, directory, recipe, {})
    assert directory.result_of("evaluate")["kind"] == chosen
    if chosen == "ngram":  # what an earlier choice has published is gone
        assert not directory.speculator.exists() and not directory.metrics.exists()
        return
    own = directory.of_kind(chosen)
    for path in ("model.safetensors", "config.json"):
        assert (directory.speculator / path).samefile(own.speculator / path), "copied"
    assert directory.metrics.read_bytes() == own.metrics.read_bytes()


@pytest.mark.parametrize("lookup_speed", [50.0, 5000.0])
def test_a_trained_kind_that_is_slower_than_lookup_in_servers_is_followed_by_lookup(
    run, monkeypatch, lookup_speed
) -> None:
    directory, recipe = run
    directory.begin_attempt(recipe, (), ["train-speculator"])
    kinds = sample_kinds()
    assert kinds[0].kind == "eagle3"
    write_json(directory.kind_choice, [kind.model_dump(mode="json") for kind in kinds])
    evaluated = []

    def measured(context: EvaluationContext) -> dict[str, Any]:
        """Writes a report in which custom does not ship, and lookup has `lookup_speed`."""
        evaluated.append([kind.kind for kind in context.kinds])
        results = sample_results().model_dump(mode="json")
        for served in results["served"].values():
            reference = served["speed"]["1"]["lookup"]
            reference["block"]["tokens_per_s"] = lookup_speed
            reference["custom_over"] |= {"value": 0.9, "low": 0.8, "high": 1.1}
        Report.model_validate(results).write(context.folders.report / "report.json")
        for name in ("report.html", "report.md"):
            (context.folders.report / name).write_text(context.kinds[0].kind)
        verdict = "undecided" if context.kinds[0].kind == "eagle3" else "ship"
        return {"verdict": verdict, "kind": context.kinds[0].kind}

    monkeypatch.setattr("outrider.eval.evaluate.run_evaluation", measured)
    perform_stage(EVALUATE_KINDS, directory, recipe, {})
    order = ["eagle3", "mtp", "ngram", "p_eagle"]
    others = [kind for kind in evaluated[0] if kind not in ("eagle3", "ngram")]
    assert sorted(evaluated[0]) == order and evaluated[0][0] == "eagle3"
    if lookup_speed < 100:  # slower than no speculation, so it is no better choice
        assert len(evaluated) == 1 and directory.result_of("evaluate")["kind"] == "eagle3"
        return
    assert evaluated[1:] == [["ngram", "eagle3", *others]]
    assert directory.result_of("evaluate") == {"verdict": "ship", "kind": "ngram"}
    assert (directory.root / "report.html").read_text() == "ngram"
    assert (directory.of_kind("eagle3").evaluation / "report.html").read_text() == "eagle3"
    assert not directory.speculator.exists()
