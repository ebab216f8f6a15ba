"""The rehearsal at small widths: the cut, the random target, and the comparison."""

import dataclasses
import json
import mmap
from pathlib import Path

import psutil
import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.rehearsal.compare import Row, compared
from outrider.pipeline.rehearsal.cut import R1_CONFIG, cut_config, cut_to_fit
from outrider.pipeline.rehearsal.peaks import Peak, Peaks
from outrider.pipeline.rehearsal.settings import SETTINGS, rehearsal_words
from outrider.pipeline.rehearsal.target import extend_vocabulary, random_target, shapes
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.kinds.mtp.checkpoint import load_mtp
from outrider.speculators.kinds.mtp.size import mtp_size

R1 = read_json(R1_CONFIG)
WIDTHS = (
    "hidden_size",
    "num_attention_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "intermediate_size",
    "moe_intermediate_size",
    "vocab_size",
)
SMALL = cut_config(R1, 4, fp8=False) | {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
    "intermediate_size": 96,
    "moe_intermediate_size": 32,
    "vocab_size": 5000,
}


def planned(*words: str):
    """The rehearsal's recipe before its target is known."""
    original = load_recipe("r1/resume_screening").recipe
    overrides = [*rehearsal_words(original), "target.model=nano_r1", *words]
    return load_recipe("r1/resume_screening", overrides).recipe


def test_the_cut_keeps_every_width_and_the_kinds_of_layers() -> None:
    for experts in (2, 4, 8):
        cut = cut_config(R1, experts, fp8=False)
        assert all(cut[name] == R1[name] for name in WIDTHS)
        assert (cut["num_hidden_layers"], cut["first_k_dense_replace"]) == (2, 1)
        assert cut["n_routed_experts"] == experts and "quantization_config" not in cut
        # Each group has two experts, and the chosen groups hold the experts of a token.
        assert cut["n_group"] * 2 == experts
        assert cut["num_experts_per_tok"] <= 2 * cut["topk_group"]
    assert cut_config(R1, 8, fp8=True)["quantization_config"] == R1["quantization_config"]


def test_every_setting_is_a_key_and_the_training_stays_the_recipes() -> None:
    recipe, original = planned(), load_recipe("r1/resume_screening").recipe
    assert recipe.name == "r1_resume_screening_rehearsal"
    assert {key.split(".")[0] for key in SETTINGS} <= set(type(recipe).model_fields)
    for name in ("train", "depth", "kind"):
        assert getattr(recipe.speculator, name) == getattr(original.speculator, name)
    for name in ("loss", "compute", "zero_stage", "learning_rate"):
        assert getattr(recipe.training, name) == getattr(original.training, name)


def test_the_most_experts_that_fit_are_taken() -> None:
    recipe = planned()
    found = [cut_to_fit(R1, recipe, int(gigabytes * 1e9)) for gigabytes in (64, 21, 19)]
    assert [cut.experts for cut in found] == [8, 4, 2]
    sizes = [cut.needed for cut in found]
    assert sizes == sorted(sizes, reverse=True)
    with pytest.raises(OutriderError, match=r"--rehearse: with 2 experts, .* 10.0 GB of memory"):
        cut_to_fit(R1, recipe, 10**10)


def test_weights_have_the_names_and_sizes_of_the_config_and_are_written_once(
    tmp_path: Path,
) -> None:
    directory = random_target(SMALL, tmp_path)
    written = (directory / "model-00001.safetensors").stat().st_mtime_ns
    assert random_target(SMALL, tmp_path) == directory
    assert (directory / "model-00001.safetensors").stat().st_mtime_ns == written
    index = read_json(directory / "model.safetensors.index.json")
    assert set(index["weight_map"]) == set(shapes(SMALL))
    drafter = load_mtp(directory)
    assert sum(p.numel() for p in drafter.parameters()) == mtp_size(SMALL).total
    assert load_target_ends(directory).lm_head_VH.shape == (5000, 64)
    assert abs(float(drafter.eh_proj.weight.detach().std()) - 0.02) < 0.001
    assert random_target(SMALL | {"n_routed_experts": 8}, tmp_path) != directory


def test_fp8_blocks_are_written_where_they_can_be_computed(tmp_path: Path) -> None:
    config = SMALL | {"quantization_config": R1["quantization_config"]}
    directory = random_target(config, tmp_path)
    with safe_open(directory / "model-00001.safetensors", framework="pt") as file:
        names = set(file.keys())
        value = file.get_tensor("model.layers.0.mlp.gate_proj.weight")
        assert value.dtype == torch.float8_e4m3fn
        assert "model.layers.0.mlp.gate_proj.weight_scale_inv" in names
        for kept in ("model.layers.2.eh_proj", "model.layers.1.mlp.gate", "lm_head"):
            assert file.get_tensor(f"{kept}.weight").dtype == torch.bfloat16
    load_mtp(directory)


def test_texts_keep_their_ids_and_every_id_has_a_text(tmp_path: Path, nano_r1: Path) -> None:
    tokenizer = read_json(nano_r1 / "tokenizer.json")
    extend_vocabulary(tokenizer, 5000)
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        (tmp_path / name).write_text((nano_r1 / name).read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    small, extended = (AutoTokenizer.from_pretrained(path) for path in (nano_r1, tmp_path))
    text = "List the total of this receipt: 3 unused-4711 apples."
    assert extended.encode(text) == small.encode(text)
    assert len(extended) == 5000
    assert extended.decode([4999]) == "unused-4999"
    assert "" not in extended.batch_decode([[number] for number in range(4096, 5000)])


def test_peaks_are_of_each_process_by_stage() -> None:
    """This process by its status, and a process that has ended."""
    peaks, own = Peaks(), psutil.Process()
    peaks.stage = "capture"
    peaks.sample([own])
    [before] = peaks.by_stage["capture"].values()
    # Not from the allocator, which may keep what earlier tests freed.
    held = mmap.mmap(-1, 50_000_000, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    first = dataclasses.replace(before)
    held.write(bytes(len(held)))
    peaks.sample([own])
    held.close()
    peaks.stage = "train"
    peaks.sample([own])
    assert before.anonymous - first.anonymous == pytest.approx(5e7, rel=0.1)
    assert before.resident >= before.anonymous
    [after] = peaks.by_stage["train"].values()
    assert after.anonymous < before.anonymous - 4e7
    assert after.resident == pytest.approx(before.resident, rel=0.01)


def test_a_prediction_holds_within_a_tenth(tmp_path: Path) -> None:
    assert Row("", 109, 100).holds and Row("", 91, 100).holds
    assert not Row("", 111, 100).holds and not Row("", 100, 0).holds

    class Run:
        training, features, speculator = (tmp_path / name for name in "tfs")

    sizes = {"t/checkpoints/step-0000002/a": 70, "f/shard-00001.safetensors": 40, "s/model": 9}
    for name, size in (sizes | {"f/manifest.json": 1000}).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    price = {
        "memory": [{"peak_bytes": 100, "phases": {"start": {"weights": 50, "activations": 30}}}],
        "features": {"bytes": 40},
        "checkpoint_bytes": 76,
        "speculator_bytes": 12,
    }
    (tmp_path / "t" / "result.json").write_text('{"start_peak_bytes": 78}')
    rows = compared(price, Run(), {"train": {"training process": Peak(resident=95)}})
    assert [row.measured for row in rows] == [95, 78, 40, 70, 9]
    assert [row.holds for row in rows] == [True, True, True, True, False]
