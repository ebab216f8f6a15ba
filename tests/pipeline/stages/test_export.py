"""The content of a bundle. tests/serving/test_server.py tests that it is served as evaluated."""

import json
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.eval.config import EXIT_CODES
from outrider.eval.results.parts import Drafters
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.stages.export import _profile, _work, _write
from outrider.serving.admin.swap import release_files
from outrider.serving.bundle.bundle_digest import bundle_digest, check_files
from outrider.serving.bundle.model_card import model_card
from outrider.serving.serve_flags import read_serve_flags
from outrider.serving.speculator import Speculator
from outrider.speculators.base import base_of
from tests.eval.sample_results import sample_results


@pytest.fixture
def trained(tmp_path):
    """The folder of a run with a speculator's files, which nothing loads here."""
    directory = tmp_path / "speculator"
    directory.mkdir()
    config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "num_hidden_layers": 4,
        "num_nextn_predict_layers": 1,
    }
    (directory / "config.json").write_text(json.dumps(config))
    tensors = {"model.layers.4.enorm.weight": torch.zeros(1)}
    save_file(tensors, directory / "model.safetensors")
    return tmp_path


def bundle(folder, *overrides, kind="mtp", ranges=None, by_batch_size=False):
    """Writes the bundle of a run in `folder`; returns bundle.json."""
    results = sample_results()
    schedules = None if ranges is None else Drafters(base=ranges, custom=ranges)
    choice = {"k": Drafters(base=2, custom=4), "k_per_batch_size": schedules}
    evaluated = {
        "speculator": results.speculator.model_copy(update={"kind": kind}),
        "choice": results.choice.model_copy(update=choice),
        "by_batch_size": by_batch_size,
    }
    results = results.model_copy(update=evaluated)
    recipe = load_recipe("resume_screening.yaml", list(overrides)).recipe
    out = folder / "bundle"
    run = SimpleNamespace(speculator=folder / "speculator")
    _write(run, recipe, results, evidence={}, profile=None, to=str(out))
    return read_json(out / "bundle.json")


def test_other_formats_are_in_folders_of_their_own(trained):
    manifest = bundle(trained)
    files = {"config.json", "model.safetensors", "serve.sh"}
    other = {"sglang_nextn/config.json", "sglang_nextn/model.safetensors"}
    assert set(manifest["files"]) == files | other
    assert set(load_file(trained / "bundle/sglang_nextn/model.safetensors")) == {
        "model.layers.0.enorm.weight"
    }
    assert set(bundle(trained, "export.other_formats=false")["files"]) == files


def test_lookup_has_a_bundle_without_weights(nano_r1, tmp_path):
    """It is checked, served, copied and named as others are, and no live server loads it."""
    manifest = bundle(tmp_path, kind="ngram")
    out = tmp_path / "bundle"
    assert set(manifest["files"]) == {"serve.sh"} == set(check_files(out))
    flags = read_serve_flags(out, "/mnt/speculator").arguments["speculative_config"]
    assert flags["method"] == "ngram" and flags["num_speculative_tokens"] == 4
    assert Speculator.from_name(out) == Speculator("ngram")
    assert base_of(str(out), nano_r1).kind.name == "ngram"
    assert "It has no weights" in model_card(out, "acme/lookup")
    with pytest.raises(OutriderError, match=r"ngram has nothing to load.*serve\.sh"):
        release_files(out, tmp_path, bundle_digest(out))


def test_the_card_of_suffix_lookup_names_the_package_that_servers_need(tmp_path):
    bundle(tmp_path, kind="suffix")
    assert "outrider doctor --install-suffix" in model_card(tmp_path / "bundle", "acme/it")


def test_k_by_batch_size_where_it_was_evaluated(trained):
    ranges = [(1, 4, 4), (5, 8, 5), (9, 9, 0)]
    manifest = bundle(trained, ranges=ranges, by_batch_size=True)
    assert manifest["num_speculative_tokens"] == 5
    assert manifest["num_speculative_tokens_per_batch_size"] == [*map(list, ranges)]
    served = '"num_speculative_tokens_per_batch_size": [[1, 4, 4], [5, 8, 5], [9, 9, 0]]'
    assert served in (trained / "bundle" / "serve.sh").read_text()
    fixed = bundle(trained, ranges=ranges)
    assert fixed["num_speculative_tokens_per_batch_size"] is None
    assert fixed["num_speculative_tokens"] == 4
    with pytest.raises(OutriderError, match=r"k_per_batch_size: true, but eval.k was set by hand"):
        bundle(trained, by_batch_size=True)


@pytest.mark.parametrize("verdict", ["undecided", "do not ship"])
def test_only_ship_is_exported(tmp_path, verdict):
    results = sample_results()
    judged = results.verdict.model_copy(update={"verdict": verdict, "reason": "too few sessions"})
    results.model_copy(update={"verdict": judged}).write(tmp_path / "report.json")
    recipe = load_recipe("resume_screening.yaml", []).recipe
    with pytest.raises(OutriderError, match=f"verdict is `{verdict}`: too few sessions") as refused:
        _work(SimpleNamespace(root=tmp_path), recipe, {"force": False})
    assert refused.value.exit_code == EXIT_CODES[verdict]


def test_the_profile_is_the_replay_s(tmp_path):
    """Names and meanings of NVIDIA Model-Optimizer's schema 1.0."""
    results = sample_results()
    recipe = load_recipe("resume_screening.yaml", []).recipe
    (tmp_path / "summary.json").write_text('{"time": {"hours": 36.0}}')
    found = _profile(SimpleNamespace(traffic=tmp_path), recipe, results)
    marginal = results.replay.cumulative["custom"]
    k = results.choice.k.custom
    assert found["marginal_accept_rates"] == marginal and found["num_speculative_tokens"] == k == 3
    conditional = [marginal[0], marginal[1] / marginal[0], marginal[2] / marginal[1]]
    assert found["conditional_accept_rates"] == pytest.approx(conditional)
    steps = [1 - marginal[0], marginal[0] - marginal[1], marginal[1] - marginal[2], marginal[2]]
    assert found["acceptance_length_histogram"] == pytest.approx(
        dict(zip([1, 2, 3, 4], steps, strict=True))
    )
    assert found["mean_accept_length"] == pytest.approx(1 + sum(marginal))
    assert found["accept_length_by_k"][3] == results.replay.custom.value
    assert all(
        low < own < high for (low, high), own in zip(found["intervals"], marginal, strict=True)
    )
    conditions = found["measurement_conditions"]
    assert (conditions["traffic_days"], conditions["over"]) == (1.5, "60 sessions")
    assert found["target_model"] == {"model": "nano_r1", "revision": None}
    counted = _profile(
        SimpleNamespace(traffic=tmp_path / "none"),
        recipe,
        results.model_copy(update={"replay": None}),
    )
    assert counted["measurement_conditions"]["source"] == "vLLM's counters"
    assert counted["intervals"] == [None] * 3 and [*counted["accept_length_by_k"]] == [3]
