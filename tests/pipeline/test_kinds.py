"""Several kinds of drafter in one run: its stages, its directory, training in turn."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset

from outrider.common.errors import OutriderError
from outrider.common.files import read_json, write_json
from outrider.data.features.feature_store import FeatureStore
from outrider.data.on_policy.check import write_quarantine
from outrider.pipeline import draft_parity_check
from outrider.pipeline.preflight import check_recipe
from outrider.pipeline.recipe.for_target import resolve_for_target
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.runner import perform_stage
from outrider.pipeline.stages.capture import CAPTURE
from outrider.pipeline.stages.registry import STAGES, stage_names, stages_of
from outrider.pipeline.stages.train import train_stage_for_kind
from outrider.serving.speculator import Drafting, Speculator
from outrider.serving.vllm_arguments import engine_arguments
from outrider.speculators.kinds import drafter_kind_of, installed_lookups, trainable_names
from outrider.training.distributed import launch
from tests.dflash_head import write_dspark_head
from tests.eagle3_head import write_eagle3_head
from tests.tiny import tiny_glm, write_tiny_target
from tests.training.corpus import make_corpus
from tests.training.forked_ranks import run_forked

BOTH = "speculator.kind=[mtp,eagle3]"


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_target(tmp_path_factory.mktemp("kinds") / "target")


def recipe_of(target: Path, *words: str) -> Recipe:
    positions = "serving.engine.max_model_len=512"
    return load_recipe("resume_screening", [f"target.model={target}", positions, *words]).recipe


def resolved(recipe: Recipe) -> Recipe:
    return resolve_for_target(recipe)[0]


AUTO = "speculator.kind=auto"


def test_auto_is_every_kind_that_the_target_supports(
    target: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = resolved(recipe_of(target, AUTO))
    assert set(recipe.speculator.kinds) == set(trainable_names()) - {"dspark"}
    assert recipe.speculator.candidates == (*recipe.speculator.kinds, *installed_lookups())
    assert resolved(recipe) == recipe
    # Against lookup as the base, it is no candidate.
    recipe = resolved(recipe_of(target, AUTO, "speculator.base=ngram"))
    assert "ngram" not in recipe.speculator.candidates
    # A conversion that dropped the layer: a note says why the kind that needs it is left out.
    other = shutil.copytree(target, tmp_path / "other")
    config = read_json(other / "config.json") | {"num_nextn_predict_layers": 0}
    (other / "config.json").write_text(json.dumps(config))
    recipe, notes = resolve_for_target(recipe_of(other, AUTO, "speculator.base=none"))
    assert "eagle3" in recipe.speculator.kinds and "mtp" not in recipe.speculator.kinds
    assert any("not mtp:" in note for note in notes)
    printed = capsys.readouterr()
    assert not printed.out and not printed.err
    # One whose layers' states vLLM does not return.
    glm = write_tiny_target(tmp_path / "glm", config=tiny_glm())
    assert resolved(recipe_of(glm, AUTO)).speculator.candidates == ("mtp", *installed_lookups())


def test_a_lookup_that_is_not_installed_is_refused_before_any_stage(
    target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "arctic_inference.suffix_decoding", None)
    for kind in ("suffix", "[mtp,suffix]"):
        with pytest.raises(OutriderError, match="outrider doctor --install-suffix"):
            resolved(recipe_of(target, f"speculator.kind={kind}"))
    assert resolved(recipe_of(target, AUTO)).speculator.candidates[-1] == "ngram"
    listed = recipe_of(target, "speculator.kind=[mtp,lookup]")
    assert listed.speculator.kinds == ("mtp",)
    assert resolved(listed).speculator.candidates == ("mtp", "ngram")
    against = recipe_of(target, "speculator.kind=[mtp,lookup]", "speculator.base=ngram")
    assert resolved(against).speculator.candidates == ("mtp",)


WITH_MLA = "serving.engine.environment.VLLM_MLA_DISABLE='0'"


def test_a_head_has_the_attention_that_the_engine_s_cache_is_made_for(target: Path) -> None:
    """vLLM keeps one form of cache, so a head of the other form could only be trained."""
    for words, layer in (((), "llama"), ((WITH_MLA,), "mla")):
        recipe = resolved(recipe_of(target, "speculator.kind=eagle3", *words))
        assert recipe.speculator.head.layer_type == layer
        assert Recipe.model_validate(recipe.model_dump()) == recipe
    for kind, words, why in (
        ("eagle3", ("speculator.head.layer_type=llama", WITH_MLA), "Llama's .* with MLA.* to 1"),
        ("eagle3", ("speculator.head.layer_type=mla",), "with MLA .* without MLA.* to 0"),
        ("p_eagle", (WITH_MLA,), "Llama's attention cannot be served"),
    ):
        with pytest.raises(OutriderError, match=rf"speculator\.kind = {kind}: .*{why}"):
            resolved(recipe_of(target, f"speculator.kind={kind}", *words))
    recipe = resolved(recipe_of(target, AUTO, WITH_MLA))
    assert "p_eagle" not in recipe.speculator.kinds and "eagle3" in recipe.speculator.kinds
    mtp = recipe_of(target, WITH_MLA)
    assert resolved(mtp) == mtp


def test_a_base_s_attention_is_compared_with_the_engine_s(target: Path, tmp_path: Path) -> None:
    """Its layer cannot be chosen; what a GPU does is said where a CPU plans for it."""
    latent = write_eagle3_head(target, tmp_path / "latent", mla=True)
    words = ("speculator.kind=eagle3", f"speculator.base={latent}")
    with pytest.raises(OutriderError, match="choose another base or kind, or set VLLM_MLA_DIS"):
        resolved(recipe_of(target, *words))
    assert resolved(recipe_of(target, *words, WITH_MLA)).speculator.kinds == ("eagle3",)
    llama = write_eagle3_head(target, tmp_path / "llama")
    words = ("speculator.kind=eagle3", f"speculator.base={llama}")
    _, [note] = resolve_for_target(recipe_of(target, *words))
    assert note.startswith(f"speculator.base = {llama}: an EAGLE-3 head with Llama's attention")
    assert "On a GPU, vLLM may run it with MLA" in note
    without_mla = WITH_MLA.replace("0", "1")
    assert resolve_for_target(recipe_of(target, *words, without_mla))[1] == []
    assert resolve_for_target(recipe_of(target, "speculator.kind=eagle3"))[1] == []


V2 = "serving.engine.environment.VLLM_USE_V2_MODEL_RUNNER='1'"


def test_a_kind_of_model_runner_v2_is_refused_by_an_engine_with_v1(
    target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the kind that is trained, as the base, and when an engine starts."""
    words = ("speculator.kind=dspark", WITH_MLA.replace("0", "1"))
    one = recipe_of(target, *words)
    refusal = "a DSpark head in its model runner V2"
    with pytest.raises(OutriderError, match=rf"speculator\.kind = dspark: vLLM 0.32.*{refusal}"):
        resolved(one)
    head = write_dspark_head(target, tmp_path / "head")
    with pytest.raises(OutriderError, match=rf"speculator\.base = .*head: vLLM 0.32.*{refusal}"):
        check_recipe(recipe_of(target, f"speculator.base={head}"), dry_run=True)
    drafting = Drafting(Speculator.from_name(head), 4)
    with pytest.raises(OutriderError, match=refusal):
        engine_arguments(one.target, one.serving.engine, drafting)
    v2 = resolved(recipe_of(target, *words, V2))
    assert v2.speculator.kinds == ("dspark",)
    arguments = engine_arguments(v2.target, v2.serving.engine, drafting)
    assert arguments["speculative_config"]["method"] == "dspark"
    monkeypatch.setattr("outrider.serving.runner.runs_on_cpu", lambda: False)
    assert resolved(one).speculator.kinds == ("dspark",)


def test_one_kind_keeps_its_stages_and_inputs(target: Path) -> None:
    one = recipe_of(target)
    both = recipe_of(target, BOTH)
    assert stages_of(one) is STAGES and "choose_kind" not in STAGES
    assert stages_of(recipe_of(target, "speculator.kind=[eagle3]")) is STAGES
    names = ["ingest", "split", "capture", "train_mtp", "train_eagle3", "choose_kind"]
    assert stage_names(None, both) == [*names, "evaluate", "export"]
    assert stage_names("train,split", both) == ["split", "train_mtp", "train_eagle3"]
    with pytest.raises(OutriderError, match=r"no stage `choose_kind`.* with several kinds"):
        stage_names("choose_kind", one)
    # Lookup reads no states, so a run that adds it captures nothing again.
    more = recipe_of(target, "speculator.kind=[mtp,ngram]")
    assert "train_mtp" in stages_of(more) and CAPTURE.settings(more) == CAPTURE.settings(one)
    streams = ["final_norm", "layer_1", "layer_2"]
    reads = {"kind": ("mtp", "eagle3"), "streams": streams}
    assert CAPTURE.settings(both)["speculator"] == reads


def captured_run(folder: Path) -> tuple[Path, RunDirectory]:
    """A target and a run of which everything up to the capture is there, for both kinds."""
    captured = make_corpus(folder, layers=(1, 2))
    run = RunDirectory(folder / "run")
    shutil.copytree(captured.features_dir, run.features)
    store = FeatureStore.open(run.features)
    rows = [
        {
            "sequence_id": name,
            "session": name,
            "user": "",
            "tenant": "",
            "time": 1.7e9 + 60 * number,
            "token_ids": store.read(name).token_ids.tolist(),
            "completion_start": store.read(name).completion_start,
            "temperature": 0.6,
            "top_p": 0.95,
            "top_k": 0,
            "constraint": "",
            "grammar": "",
            "prompt_text": f"prompt {number}",
        }
        for number, name in enumerate(store.sequence_ids)
    ]
    Dataset.from_list(rows).save_to_disk(run.sequences)
    write_json(
        run.split / "parts.json", {**captured.parts, "heldout": captured.parts["validation"]}
    )
    write_json(run.split / "slices.json", {})
    write_quarantine(run.features, {})
    return captured.target_dir, run


def test_kinds_are_trained_in_turn_and_a_finished_one_not_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, run = captured_run(tmp_path)
    trained: list[str] = []
    compared: list[str] = []

    def train(command: list[str], spec: Any, log_path: Path) -> tuple[int, bool]:
        """Real ranks, but the first training of EAGLE-3 fails."""
        trained.append(spec.speculator.only_kind)
        return (1, False) if trained == ["mtp", "eagle3"] else run_forked(command, spec, log_path)

    monkeypatch.setattr(launch, "_run", train)
    # The engine's half of the parity check has its own tests.
    monkeypatch.setattr(
        draft_parity_check,
        "check_warm_start",
        lambda run, recipe, ids: compared.append(recipe.speculator.only_kind),
    )
    words = [
        "speculator.depth=2",
        "training.epochs=1",
        "training.scratch_epochs=1",
        "training.processes=1",
        "training.row_tokens=128",
        "training.compute=fp32",
    ]
    recipe = recipe_of(target, BOTH, *words)
    mtp, eagle3 = map(train_stage_for_kind, ("mtp", "eagle3"))
    perform_stage(mtp, run, recipe, {})
    with pytest.raises(OutriderError, match="without a message"):
        perform_stage(eagle3, run, recipe, {})
    assert not mtp.reasons(run, recipe, {}) and eagle3.reasons(run, recipe, {})
    perform_stage(eagle3, run, recipe, {})
    assert trained == compared == ["mtp", "eagle3", "eagle3"]
    for kind in ("mtp", "eagle3"):
        own = run.of_kind(kind)
        assert drafter_kind_of(own.speculator).name == kind
        assert "validation_acceptance_length" in own.metrics.read_text()
    assert not run.speculator.exists() and not run.metrics.exists()
    # Another learning rate concerns both; a missing speculator its own kind.
    changed = recipe_of(target, BOTH, *words, "training.learning_rate=0.1")
    assert mtp.reasons(run, changed, {}) and eagle3.reasons(run, changed, {})
    (run.of_kind("mtp").speculator / "model.safetensors").rename(tmp_path / "weights")
    assert mtp.reasons(run, recipe, {}) == ["model.safetensors is missing"]
    assert not eagle3.reasons(run, recipe, {})
