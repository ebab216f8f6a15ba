"""What the target decides or refuses before the first stage, and the templates for own logs."""

import contextlib
import json
import shutil
from pathlib import Path

import pytest

import outrider
from outrider.common.errors import OutriderError
from outrider.pipeline import preflight
from outrider.pipeline.preflight import check_recipe, check_target_and_base
from outrider.pipeline.recipe.for_target import resolve_for_target, with_target_defaults
from outrider.pipeline.recipe.load import load_recipe
from outrider.pipeline.recipe.recipe import Recipe
from outrider.pipeline.recipe.shipped import EMBEDDED_TRAFFIC, SHIPPED
from tests.fp8_target import QUANTIZATION, write_fp8_copy
from tests.published_configs import PUBLISHED
from tests.r1_config import R1 as R1_CONFIG
from tests.tiny import write_tiny_target
from tests.tiny_decoders import TOKENIZER, write_tiny_decoder

NANO_R1 = SHIPPED / "nano_r1" / "target"
LOG = EMBEDDED_TRAFFIC / "social_chat.jsonl.gz"
TEMPLATES = ("template", "r1/template", "r1_distill/template")


def decided(recipe: Recipe) -> tuple[float, int, int]:
    training = recipe.training
    engine = recipe.serving.engine
    return training.learning_rate, training.row_tokens, engine.max_model_len


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("resume_screening", (1e-3, 2048, 2048)),
        ("r1/resume_screening", (3e-5, 32768, 32768)),
    ],
)
def test_the_target_s_width_and_positions_decide_rate_and_lengths(name: str, values) -> None:
    """One rule, from which the tuned recipes do not differ."""
    nano = json.loads((NANO_R1 / "config.json").read_text())
    template = load_recipe("template", [f"traffic.path={LOG}"]).recipe
    by_rule = with_target_defaults(template, R1_CONFIG if "r1/" in name else nano)
    assert decided(by_rule) == decided(load_recipe(name).recipe) == values


def test_a_template_run_resolves_them_before_anything_runs(tmp_path: Path) -> None:
    target = write_tiny_target(tmp_path / "target")
    words = (f"traffic.path={LOG}", f"target.model={target}", "name=mine")
    run = outrider.open("template", *words, runs=tmp_path / "runs", dry_run=True)
    assert decided(run.recipe)[1:] == (512, 512)  # the target's positions
    assert run.recipe == resolve_for_target(run.recipe)[0]
    assert run.directory.root.name == "mine"


def test_more_positions_than_the_target_has_are_refused() -> None:
    """vLLM would refuse them too, but minutes later; a scaled rotary embedding may have more."""
    nano = json.loads((NANO_R1 / "config.json").read_text())
    recipe = load_recipe("resume_screening", ["serving.engine.max_model_len=999999"]).recipe
    with pytest.raises(OutriderError, match=r"max_model_len = 999999: .* has \d+ positions"):
        with_target_defaults(recipe, nano)
    with_target_defaults(recipe, nano | {"rope_scaling": {"rope_type": "linear", "factor": 512}})


def test_notes_name_what_was_chosen_and_nothing_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = load_recipe("resume_screening", ["speculator.kind=auto"]).recipe
    recipe, notes = resolve_for_target(asked, NANO_R1)
    assert notes[-1].startswith(
        f"speculator.kind = auto: {', '.join(recipe.speculator.candidates)}"
    )
    assert recipe.speculator.head.layer_type == "llama"
    # A recipe that is resolved already is returned as it is, without notes.
    assert resolve_for_target(recipe, NANO_R1) == (recipe, [])
    printed = capsys.readouterr()
    assert not printed.out and not printed.err


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("overrides", "positions"),
    [
        ({}, 40960),
        ({"max_position_embeddings": 131072, "rope_parameters": YARN}, 131072),
        ({"rope_parameters": YARN}, 40960),
        ({"rope_parameters": {"rope_type": "linear", "factor": 4.0}}, 163840),
    ],
)
def test_hf_overrides_change_the_number_of_positions(
    overrides: dict, positions: int, tmp_path: Path, nano_r1: Path
) -> None:
    """The limit is that of vLLM's own ModelConfig."""
    from vllm.config import ModelConfig

    config = PUBLISHED["Qwen3-4B"][0]
    for name in TOKENIZER:
        shutil.copyfile(nano_r1 / name, tmp_path / name)
    (tmp_path / "config.json").write_text(json.dumps(config))
    rope = {"rope_theta": 1e6}  # which vLLM needs in rope_parameters, and the rule does not
    for_vllm = {k: rope | v if isinstance(v, dict) else v for k, v in overrides.items()}
    for length, fits in ((positions, True), (positions + 1, False)):
        arguments = {"max_model_len": length, "extra_arguments": {"hf_overrides": overrides}}
        recipe = load_recipe("resume_screening").recipe
        engine = recipe.serving.engine.model_copy(update=arguments)
        serving = recipe.serving.model_copy(update={"engine": engine})
        recipe = recipe.model_copy(update={"serving": serving})
        with contextlib.nullcontext() if fits else pytest.raises(OutriderError, match="positions"):
            with_target_defaults(recipe, config)
        with contextlib.nullcontext() if fits else pytest.raises(ValueError, match="max_model_len"):
            ModelConfig(str(tmp_path), hf_overrides=for_vllm, max_model_len=length)


NO_LOGS = r"traffic\.path = '.*YOUR_LOGS': no such .* give a log"


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        *((name, f"target.model={NANO_R1}", NO_LOGS) for name in TEMPLATES),
        ("template", f"traffic.path={LOG}", r"target\.model = 'YOUR_TARGET': .*give a checkpo"),
    ],
)
def test_a_template_names_what_it_needs(
    name: str, given: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(OutriderError, match=message):
        outrider.open(name, given, "serving.engine.max_model_len=512", runs=tmp_path, dry_run=True)


def test_fp8_blocks_pass_and_other_quantizations_do_not(tmp_path: Path) -> None:
    target = write_fp8_copy(write_tiny_target(tmp_path / "source"), tmp_path / "target")
    check_target_and_base(target)
    config = json.loads((target / "config.json").read_text())
    for other in ({"quant_method": "awq"}, QUANTIZATION | {"weight_block_size": None}):
        (target / "config.json").write_text(json.dumps(config | {"quantization_config": other}))
        with pytest.raises(
            OutriderError,
            match=rf"target/config\.json: quantization_config .*{other['quant_method']}",
        ):
            check_target_and_base(target)


def test_a_quantization_that_vllm_does_not_load_is_refused(tmp_path: Path) -> None:
    """Before an engine starts; a plug-in's is accepted if the recipe names it."""
    from vllm.model_executor.layers.quantization import QUANTIZATION_METHODS

    at_load = {"online", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel"}
    at_load |= {"int8_per_channel_weight_only", "nvfp4_per_token"}
    assert set(QUANTIZATION_METHODS) - at_load == preflight.QUANTIZATIONS - {"auto-round"}
    target = write_tiny_decoder("LlamaForCausalLM", tmp_path / "target")
    config = json.loads((target / "config.json").read_text())
    section = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (target / "config.json").write_text(json.dumps(config | {"quantization_config": section}))
    words = [f"target.model={target}", f"traffic.path={LOG}", "serving.engine.max_model_len=512"]
    words += ["speculator.kind=eagle3", "speculator.base=ngram"]
    with pytest.raises(OutriderError, match=r"quant_method = bitsandbytes: vLLM 0\.32 does not lo"):
        check_recipe(load_recipe("template", words).recipe, dry_run=True)
    words.append("serving.engine.extra_arguments.quantization=bitsandbytes")
    check_recipe(load_recipe("template", words).recipe, dry_run=True)


@pytest.mark.parametrize("dry_run", [False, True])
def test_another_vllm_than_the_tested_one_is_refused(
    dry_run: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "vllm_version", lambda: "0.33.0")
    with pytest.raises(OutriderError, match=r"vLLM 0\.33\.0 has not .*pip install vllm==0\.32\.0"):
        check_recipe(load_recipe("resume_screening").recipe, dry_run)


def test_a_deprecated_quantization_is_refused_unless_it_is_allowed(tmp_path: Path) -> None:
    from vllm.model_executor.layers.quantization import DEPRECATED_QUANTIZATION_METHODS

    assert set(DEPRECATED_QUANTIZATION_METHODS) == preflight.DEPRECATED_QUANTIZATIONS
    target = write_tiny_decoder("LlamaForCausalLM", tmp_path / "target")
    config = json.loads((target / "config.json").read_text())
    section = {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0}
    (target / "config.json").write_text(json.dumps(config | {"quantization_config": section}))
    words = [f"target.model={target}", f"traffic.path={LOG}", "serving.engine.max_model_len=512"]
    words += ["speculator.kind=eagle3", "speculator.base=ngram"]
    words.append("serving.engine.pipeline_parallel=2")
    with pytest.raises(OutriderError, match=r"quant_method = fbgemm_fp8: deprecated, .* allowed"):
        check_recipe(load_recipe("template", words).recipe, dry_run=True)
    words[-1] = "serving.engine.extra_arguments.allow_deprecated_quantization=true"
    check_recipe(load_recipe("template", words).recipe, dry_run=True)
