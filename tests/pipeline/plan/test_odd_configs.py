"""A config.json without some keys, or with null in them: a plan, or one message."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider.common.errors import OutriderError
from outrider.pipeline.plan.target_size import target_size
from outrider.pipeline.plan.training_cost import features_cost, memory_plan
from outrider.pipeline.recipe.for_target import resolve_for_target
from outrider.pipeline.recipe.load import load_recipe
from outrider.speculators.base import kind_and_base
from outrider.speculators.checkpoints.layout import read_target_config
from tests.fuzzing import any_json, examples
from tests.published_configs import PUBLISHED

NAMES = ("Llama-3.1-8B", "Qwen3-30B-A3B", "GLM-4.6", "R1-AWQ", "Kimi-K2", "Mistral-Nemo")
CASES = [(name, key) for name in NAMES for key in PUBLISHED[name][0]]


def plan(target: Path) -> None:
    """What `init` and a dry run read of the target's config.json."""
    recipe = load_recipe("template", [f"target.model={target}", "traffic.path=nano_r1/social_chat"])
    kind, base = kind_and_base(target)
    speculator = recipe.recipe.speculator.of_kinds([kind]).model_copy(update={"base": base})
    resolved = recipe.recipe.model_copy(update={"speculator": speculator})
    resolved, _ = resolve_for_target(resolved, target)
    config = read_target_config(target)
    assert target_size(config).parameters > 0
    assert features_cost(1000, resolved, config)["bytes"] > 0
    memory_plan(resolved, config, target)


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.sampled_from(CASES), st.booleans())
def test_any_key_may_be_missing_or_null(
    tmp_path: Path, case: tuple[str, str], is_null: bool
) -> None:
    name, key = case
    config = dict(PUBLISHED[name][0])
    del config[key]
    if is_null:
        config[key] = None
    (tmp_path / "config.json").write_text(json.dumps(config))
    try:
        plan(tmp_path)
    except OutriderError as error:
        assert "\n" not in str(error) and len(str(error)) < 600


@pytest.mark.parametrize("name", NAMES)
def test_the_complete_config_has_a_plan(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED[name][0]))
    plan(tmp_path)


@examples(120)
@given(st.data())
def test_any_value_of_a_key_has_a_plan_or_one_message(tmp_path: Path, data: st.DataObject) -> None:
    config = PUBLISHED[data.draw(st.sampled_from(NAMES))][0]
    (tmp_path / "config.json").write_text(json.dumps(data.draw(any_json(config))))
    try:
        plan(tmp_path)
    except OutriderError as error:
        assert "\n" not in str(error) and len(str(error)) < 600


@pytest.mark.parametrize("content", ["[]", '{"architectures": 3}', '{"architectures": [[]]}'])
def test_a_config_of_another_form_names_its_file(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(OutriderError, match=r"config\.json: .*; copy this key from"):
        plan(tmp_path)
