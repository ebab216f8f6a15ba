"""Public heads: which the engine serves and counts, and which are trained.

The configurations have the published keys, on a tiny target with as many layers as the public one.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.common.errors import OutriderError
from outrider.common.files import read_json
from outrider.pipeline import preflight
from outrider.pipeline.preflight import check_servable, check_target_and_base
from outrider.pipeline.recipe.load import load_recipe
from outrider.serving import runner, vllm_arguments
from outrider.serving.speculator import Drafting, Speculator
from outrider.serving.vllm_arguments import speculator_refusal
from outrider.speculators.base import unsupported_kinds
from outrider.speculators.checkpoints.layout import read_layout
from outrider.speculators.config import SpeculatorConfig
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds import check_speculator, drafter_kind_of, trainable_kind
from outrider.speculators.kinds.eagle3.loadable import ARCHITECTURES, SAME_CLASS
from outrider.speculators.kinds.protocol import Origin
from tests.dflash_head import write_dflash_head, write_dspark_head
from tests.eagle3_head import write_eagle3_head
from tests.tiny import VOCAB, edit_tensors
from tests.tiny_decoders import write_tiny_decoder

FULL = {"draft_vocab_size": VOCAB}
QWEN3_8B_LAYERS = [2, 10, 18, 26, 34]  # target_layer_ids [1, 9, 17, 25, 33] count outputs


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with the 36 layers of Qwen3-8B."""
    directory = tmp_path_factory.mktemp("qwen3") / "target"
    return write_tiny_decoder("Qwen3ForCausalLM", directory, num_hidden_layers=36)


def without_own_rows(tensors: dict[str, Tensor]) -> None:
    """Leaves out embedding, head rows and draft vocabulary, as z-lab does (vllm#53612)."""
    for name in ("embed_tokens.weight", "lm_head.weight", "d2t", "t2d"):
        tensors.pop(name, None)


def of_layers(directory: Path) -> Path:
    """Repeats the written layer, so that the weights have as many as config.json."""
    config = read_json(directory / "config.json")
    count = config.get("transformer_layer_config", config)["num_hidden_layers"]

    def repeat(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.startswith(("layers.0.", "midlayer."))]:
            part = name.removeprefix("layers.0.").removeprefix("midlayer.")
            for index in range(1, count):
                tensors[f"layers.{index}.{part}"] = tensors[name].clone()

    edit_tensors(directory, repeat)
    return directory


def write_z_lab(target: Path, directory: Path, layers: int = 5, **changed: Any) -> Path:
    """z-lab/Qwen3-8B-DFlash-b16."""
    keys = {
        "block_size": 16,
        "num_hidden_layers": layers,
        "layer_types": ["full_attention"] * layers,
        "num_target_layers": 36,
        "rope_theta": 1_000_000,
        "rope_scaling": None,
        "use_sliding_window": False,
        "sliding_window": None,
    }
    write_dflash_head(target, directory, layers=QWEN3_8B_LAYERS, **(keys | changed))
    config = read_json(directory / "config.json")
    del config["draft_vocab_size"]
    (directory / "config.json").write_text(json.dumps(config))
    edit_tensors(directory, without_own_rows)
    return of_layers(directory)


def write_red_hat(target: Path, directory: Path) -> Path:
    """RedHatAI's DFlash heads, in the format of vllm-project/speculators."""
    write_dflash_head(target, directory, layers=QWEN3_8B_LAYERS, num_hidden_layers=5)
    config = read_json(directory / "config.json")
    section = config.pop("dflash_config")
    head = {
        "architectures": ["DFlashDraftModel"],
        "speculators_model_type": "dflash",
        "speculators_version": "0.5.0",
        "block_size": 8,
        "draft_vocab_size": config.pop("draft_vocab_size"),
        "aux_hidden_state_layer_ids": QWEN3_8B_LAYERS,
        "mask_token_id": section["mask_token_id"],
        "transformer_layer_config": config,
    }
    (directory / "config.json").write_text(json.dumps(head))
    return of_layers(directory)


def write_dspark(target: Path, directory: Path) -> Path:
    """deepseek-ai/dspark_qwen3_8b_block7."""
    keys = {"num_hidden_layers": 5}
    return of_layers(write_dspark_head(target, directory, layers=QWEN3_8B_LAYERS, **keys))


def write_deep_p_eagle(target: Path, directory: Path) -> Path:
    """P-EAGLE's authors publish heads of four layers."""
    keys = {"num_hidden_layers": 4, "pard_token": 2}
    return of_layers(write_eagle3_head(target, directory, layers=[2, 18, 33], **keys))


SERVED: list[tuple[Callable[[Path, Path], Path], str, str, int | None]] = [
    (write_z_lab, "dflash", "num_hidden_layers = 5", 15),
    (write_red_hat, "dflash", "num_hidden_layers = 5", 7),
    (write_dspark, "dspark", "num_hidden_layers = 5", 7),
    (write_deep_p_eagle, "p_eagle", "num_hidden_layers = 4", None),
    (lambda target, path: write_z_lab(target, path, layers=1), "dflash", "no tensor lm_head", 15),
    (
        lambda target, path: write_z_lab(
            target, path, layers=1, layer_types=["sliding_attention"], sliding_window=2048
        ),
        "dflash",
        "a sliding window",
        15,
    ),
]


@pytest.mark.parametrize(("write", "name", "reason", "most"), SERVED)
def test_a_public_head_is_served_and_counted_but_not_trained(
    write: Callable[[Path, Path], Path],
    name: str,
    reason: str,
    most: int | None,
    qwen3: Path,
    tmp_path: Path,
) -> None:
    directory = write(qwen3, tmp_path / "head")
    kind = trainable_kind(name)
    assert drafter_kind_of(directory) is kind
    check_speculator(directory, qwen3)
    assert kind.max_drafts(read_json(directory / "config.json")) == most
    # The evaluation catches this refusal and counts instead (`EvaluationContext.no_replay`).
    with pytest.raises(OutriderError, match=f"{reason}.*vLLM serves such a head"):
        Speculator.from_name(directory).features(qwen3)
    with pytest.raises(OutriderError, match=f"head/config.json: {reason}.*outrider eval RECIPE"):
        kind.check_target(qwen3, directory, config_only=True)
    base = SpeculatorConfig(kind=name, base=str(directory))
    with pytest.raises(OutriderError, match=reason):
        check_target_and_base(qwen3, base)
    # Other kinds are trained and compared with it.
    check_target_and_base(qwen3, SpeculatorConfig(kind="eagle3", base=str(directory)))
    assert "eagle3" not in unsupported_kinds(str(directory), qwen3)


@pytest.mark.parametrize("on_cpu", [True, False])
def test_several_layers_of_a_block_need_a_gpu(
    on_cpu: bool, qwen3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's CPU fault is the reason; an EAGLE-3 head of several layers is right there."""
    monkeypatch.setattr(vllm_arguments, "runs_on_cpu", lambda: on_cpu)
    recipe = load_recipe("r1_distill/template").recipe
    head = Speculator.from_name(write_z_lab(qwen3, tmp_path / "dflash"))
    deep = write_eagle3_head(qwen3, tmp_path / "eagle3", layers=[2, 18, 33], num_hidden_layers=2)
    check_servable(Speculator.from_name(deep), recipe, "speculator.base")
    if not on_cpu:
        check_servable(head, recipe, "speculator.base")
        return
    with pytest.raises(OutriderError, match=r"^speculator.base.*norms the keys of all layers"):
        check_servable(head, recipe, "speculator.base")


def test_more_drafts_than_the_block_has_are_refused_with_the_number(
    qwen3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (vllm_arguments, runner):
        monkeypatch.setattr(module, "runs_on_cpu", lambda: False)
    engine = load_recipe("r1_distill/template").recipe.serving.engine
    for write, name, _, most in SERVED:
        if most is None:
            continue
        directory = write(qwen3, tmp_path / f"{name}-{most}-{len(list(tmp_path.iterdir()))}")
        speculator = Speculator.from_name(directory)
        assert speculator_refusal(Drafting(speculator, most), engine) is None
        refusal = speculator_refusal(Drafting(speculator, most + 1), engine)
        assert refusal is not None and f"at most {most} tokens a step, not {most + 1}" in refusal


@pytest.mark.parametrize("name", ["dflash", "dspark"])
def test_an_export_has_the_block_of_its_own_depth(name: str, qwen3: Path, tmp_path: Path) -> None:
    kind = trainable_kind(name)
    origin = Origin(qwen3, None, HeadConfig(draft_vocabulary="all"))
    head: Any = kind.start(origin, torch.float32, "cpu", seed=0)
    kind.write(kind.trained_tensors(head, head.state_dict()), origin, tmp_path / "head")
    kind.write_other_formats(tmp_path / "head", qwen3, "tiny", 5, tmp_path / "twins")
    assert kind.max_drafts(read_json(tmp_path / "twins" / "speculators" / "config.json")) == 5


@pytest.mark.parametrize(
    "architecture", ["DSparkDraftModel", "DominoDraftModel", "Qwen3DFlashDraftModel"]
)
def test_other_drafters_with_a_dflash_section_are_not_taken_for_dflash(
    architecture: str, qwen3: Path, tmp_path: Path
) -> None:
    """DSparkDraftModel is DeepSeek-V4's in vLLM 0.32, which has neither of the others.

    With Qwen3's layers, it is another name of a DSpark head.
    """
    keys = {"architectures": [architecture], "model_type": "deepseek_v4"}
    directory = write_dflash_head(qwen3, tmp_path / "head", **keys)
    with pytest.raises(OutriderError, match=rf"\['{architecture}'\].*eval --server URL"):
        drafter_kind_of(directory)


def test_a_head_without_rows_for_its_own_vocabulary_is_refused(qwen3: Path, tmp_path: Path) -> None:
    """vLLM would share the target's lm_head, which has other rows."""
    directory = write_dflash_head(qwen3, tmp_path / "head", layers=QWEN3_8B_LAYERS)
    edit_tensors(directory, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(OutriderError, match=r"no tensor lm_head\.weight"):
        check_speculator(directory, qwen3)


def test_layers_that_two_keys_name_differently_are_refused_with_both(
    qwen3: Path, tmp_path: Path
) -> None:
    keys = {"eagle_aux_hidden_state_layer_ids": [1, 9, 17, 25, 33]}
    directory = write_dflash_head(qwen3, tmp_path / "head", layers=QWEN3_8B_LAYERS, **keys)
    with pytest.raises(OutriderError, match=r"\[2, 10, 18, 26, 34\].*\[1, 9, 17, 25, 33\]"):
        check_speculator(directory, qwen3)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"layer_types": ["sliding_attention"], "sliding_window": 512}, "layer_types = "),
        ({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}, "rope_type = longrope"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state = False"),
        ({"num_hidden_layers": 2}, "num_hidden_layers = 2"),
        ({"attention_bias": True}, "attention_bias = True"),
    ],
)
def test_an_eagle_head_that_is_not_unrolled_is_counted(
    keys: dict[str, Any], reason: str, qwen3: Path, tmp_path: Path
) -> None:
    directory = of_layers(write_eagle3_head(qwen3, tmp_path / "head", layers=[2, 18, 33], **keys))
    kind = trainable_kind("eagle3")
    kind.check(directory, read_layout(qwen3))
    with pytest.raises(OutriderError, match=f"{reason}.*by the engine's counters"):
        kind.check_target(qwen3, directory, config_only=True)


@pytest.mark.parametrize(
    "keys",
    [
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "rope_theta": 1e6},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}},
        {"partial_rotary_factor": 0.5},
        {"eagle_config": {"use_aux_hidden_state": None}},
    ],
)
def test_a_head_with_a_scaled_or_partial_rotation_is_unrolled(
    keys: dict[str, Any], qwen3: Path, tmp_path: Path
) -> None:
    directory = write_eagle3_head(qwen3, tmp_path / "head", layers=[2, 18, 33], **keys)
    check_speculator(directory, qwen3)
    kind = trainable_kind("eagle3")
    kind.check_target(qwen3, directory, config_only=False)
    head: Any = kind.load(directory, qwen3, torch.float32)
    plain = write_eagle3_head(qwen3, tmp_path / "plain", layers=[2, 18, 33])
    other: Any = kind.load(plain, qwen3, torch.float32)
    position_N = torch.arange(40, 50)
    tables = [each.midlayer.self_attn.tables(position_N)[0] for each in (head, other)]
    rotated_as_plain = tables[0].shape == tables[1].shape and torch.equal(*tables)
    assert rotated_as_plain is ("eagle_config" in keys)
    assert kind.swappable(directory, plain) is rotated_as_plain


def test_preflight_checks_the_base(
    qwen3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K of the endpoint is compared with the block before anything is spent."""
    for module in (vllm_arguments, runner):
        monkeypatch.setattr(module, "runs_on_cpu", lambda: False)
    monkeypatch.setattr(preflight, "check_log_paths", lambda recipe: None)
    head = write_z_lab(qwen3, tmp_path / "head")
    options = [f"target.model={qwen3}", f"speculator.base={head}", "speculator.kind=eagle3"]
    preflight.check_recipe(load_recipe("r1_distill/template", options).recipe, dry_run=True)
    deep = load_recipe("r1_distill/template", [*options, "speculator.depth=16"]).recipe
    with pytest.raises(OutriderError, match=r"speculator.base = .*at most 15 tokens a step"):
        preflight.check_recipe(deep, dry_run=True)


def refusals(directory: Path, target: Path) -> set[str]:
    """What training from a head, comparing with it in a dry run, and serving it report."""
    kind = trainable_kind(drafter_kind_of(directory).name)
    found = set()
    for check in (
        lambda: kind.check_target(target, directory, config_only=True),
        lambda: check_target_and_base(
            target, SpeculatorConfig(kind="dflash", base=str(directory)), True
        ),
        lambda: check_speculator(directory, target),
    ):
        with pytest.raises(OutriderError) as raised:
            check()
        found.add(str(raised.value))
    return found


@pytest.mark.parametrize(
    ("keys", "reasons"),
    [
        (
            {"architectures": ["Qwen3MoEForCausalLMEagle3"]},
            ["vLLM 0.32 has no head Qwen3MoEForCausalLMEagle3; choose another base, or train"],
        ),
        (
            {"architectures": ["GemmaForCausalLM"]},
            ["vLLM 0.32 has no head Eagle3GemmaForCausalLM;"],
        ),
        (
            {"num_hidden_layers": 36},
            ["num_hidden_layers = 36, but the weights have 1, ", "set num_hidden_layers to 1"],
        ),
        # SpecForge's P-EAGLE.
        (
            {"architectures": ["PEagleDraftModel"], "num_hidden_layers": 4},
            [
                "a P-EAGLE head without a mask token (mask_token_id, pard_token, ptd_token_id)",
                "; architectures = ['PEagleDraftModel']: ",
                "set architectures to ['LlamaForCausalLMEagle3']",
                "; num_hidden_layers = 4",
            ],
        ),
    ],
)
def test_all_that_vllm_would_not_load_is_refused_before_an_engine_starts(
    keys: dict[str, Any], reasons: list[str], qwen3: Path, tmp_path: Path
) -> None:
    directory = write_eagle3_head(qwen3, tmp_path / "head", layers=[2, 18, 33], **keys)
    [refusal] = refusals(directory, qwen3)
    assert refusal.startswith(f"{directory / 'config.json'}: ")
    assert all(reason in refusal for reason in reasons)
    assert "vLLM serves" not in refusal


def test_without_weights_a_dry_run_takes_config_json_s_number_of_layers(
    qwen3: Path, tmp_path: Path
) -> None:
    keys = {"num_hidden_layers": 36}
    directory = write_eagle3_head(qwen3, tmp_path / "head", layers=[2, 18, 33], **keys)
    (directory / "model.safetensors").unlink()
    assert trainable_kind("eagle3").load_refusals(directory) == []


def test_spec_forge_s_dspark_keys_are_copied_to_where_vllm_looks(
    qwen3: Path, tmp_path: Path
) -> None:
    """The two heads' keys, of a DSparkDraftModel with Qwen3's layers (qwen3_dspark.py)."""
    keys = {"architectures": ["DSparkDraftModel"], "block_size": 7}
    directory = write_dspark_head(qwen3, tmp_path / "head", layers=QWEN3_8B_LAYERS, **keys)
    path = directory / "config.json"
    config = read_json(path)
    ours = ["markov_rank", "markov_head_type", "enable_confidence_head"]
    ours.append("confidence_head_with_markov")
    of_head = {key: config[key] for key in ours}
    of_block = {key: config.pop(key) for key in (*ours, "mask_token_id", "target_layer_ids")}
    path.write_text(json.dumps({**config, "dflash_config": of_block}))
    [refusal] = refusals(directory, qwen3)
    assert f"a DSpark head with {', '.join(ours)} in dflash_config" in refusal
    assert refusal.endswith("at the top level of config.json; copy them there")
    path.write_text(json.dumps({**config, **of_head, "dflash_config": of_block}))
    check_speculator(directory, qwen3)
    assert drafter_kind_of(directory).name == "dspark"
    assert drafter_kind_of(directory).max_drafts(read_json(path)) == 7


def printed_by_vllm(code: str, *words: str) -> Any:
    """What code prints as JSON in a process of its own.

    vLLM registers its classes with transformers, which would then write other checkpoints here.
    """
    command = [sys.executable, "-c", f"import json, sys\n{code}", *words]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return json.loads(printed.splitlines()[-1])


REGISTRY = """
from vllm.model_executor.models.registry import _VLLM_MODELS
print(json.dumps(_VLLM_MODELS))
"""

READ = """
from vllm.config.speculative import SpeculativeConfig
from vllm.transformers_utils.config import get_config
config = get_config(sys.argv[1], trust_remote_code=False)
read = SpeculativeConfig.hf_config_override(config)
print(json.dumps([type(read).__name__, read.architectures]))
"""


def test_the_classes_of_heads_are_those_of_vllm_s_registry() -> None:
    registry = printed_by_vllm(REGISTRY)

    def is_of_method(name: str) -> bool:
        return name.startswith("Eagle3") or name.endswith("Eagle3")

    assert {name for name in registry if is_of_method(name)} == ARCHITECTURES
    parallel = {name for name in registry if "peagle" in name.lower()}
    assert SAME_CLASS.keys() == parallel
    assert all(registry[name] == registry[same] for name, same in SAME_CLASS.items())


def test_kimi_k2_s_attention_is_deepseek_s(nano_r1: Path, tmp_path: Path) -> None:
    """vLLM reads its config.json as DeepSeek-V3's and, unlike deepseek_v3, not as an MTP layer."""
    keys = {"model_type": "kimi_k2", "mla": True}
    directory = write_eagle3_head(nano_r1, tmp_path / "head", layers=[2, 8, 13], **keys)
    read = printed_by_vllm(READ, str(directory))
    assert read == ["DeepseekV3Config", ["Eagle3DeepseekV2ForCausalLM"]]
    kind = trainable_kind("eagle3")
    kind.check(directory, read_layout(nano_r1))
    kind.check_target(nano_r1, directory, config_only=False)
    assert kind.latent_cache(read_json(directory / "config.json"))
