"""Any value in a head's config.json: a checked head, or one message."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.common.errors import OutriderError
from outrider.serving.speculator import Speculator, served_directory
from outrider.speculators.kinds import check_speculator
from tests.fuzzing import any_json, examples
from tests.speculators.kinds.test_heads import CONFIGS, TWINS, WRITERS


def use(head: Path, target: Path, cache: Path) -> None:
    """What a dry run reads of a head before it reads tensors, and its check."""
    speculator = Speculator.from_name(head)
    speculator.features(target)
    check_speculator(head, target)
    served_directory(head, target, cache)


@pytest.mark.parametrize("form", ["published", "of speculators"])
@pytest.mark.parametrize("name", WRITERS)
@examples(40)
@given(data=st.data())
def test_any_value_of_a_head_is_read_or_refused(
    name: str, form: str, target: Path, tmp_path: Path, data: st.DataObject
) -> None:
    head = tmp_path / "head"
    if not head.is_dir():
        write, settings = WRITERS[name]
        write(target, head, **settings)
    path = head / "config.json"
    original = path.read_text()
    config = json.loads(original) | CONFIGS[name]
    if form == "of speculators":
        config = TWINS[name] | {
            "transformer_layer_config": config,
            "aux_hidden_state_layer_ids": [1],
        }
    path.write_text(json.dumps(data.draw(any_json(config))))
    try:
        use(head, target, tmp_path / "cache")
    except OutriderError as error:
        assert "\n" not in str(error) and len(str(error)) < 1500  # values are quoted
    finally:
        path.write_text(original)
