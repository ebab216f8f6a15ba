"""Targets of the same shapes are told apart by their weights; copies and new paths are not."""

import json
import shutil
from pathlib import Path

import pytest

from outrider.common.errors import OutriderError
from outrider.speculators.checkpoints.target_fingerprint import (
    KEY,
    check_bundle_target,
    target_fingerprint,
)
from outrider.speculators.kinds import check_speculator


def test_a_copy_is_the_same_target_and_other_weights_are_another(
    nano_r1: Path, tmp_path: Path
) -> None:
    copy = shutil.copytree(nano_r1, tmp_path / "copy")
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"transformers_version": "9"}))
    assert target_fingerprint(copy) == target_fingerprint(nano_r1) is not None
    for file, change in (
        ("model.safetensors", lambda data: data[:-2] + bytes([data[-2] ^ 1]) + data[-1:]),
        ("tokenizer.json", lambda data: data + b" "),
        ("config.json", lambda data: data.replace(b'"rope_theta"', b'"rope_thetas"')),
    ):
        other = shutil.copytree(nano_r1, tmp_path / file)
        (other / file).write_bytes(change((other / file).read_bytes()))
        assert target_fingerprint(other) != target_fingerprint(nano_r1), file


def test_another_target_is_named_with_the_fix(nano_r1: Path, tmp_path: Path) -> None:
    other = shutil.copytree(nano_r1, tmp_path / "other")
    (other / "tokenizer.json").write_text("{}")
    manifest = {
        "target": {"model": "deepseek-ai/DeepSeek-R1"},
        KEY: target_fingerprint(other),
    }
    with pytest.raises(OutriderError, match=r"R1 \(\w{12}\), but .*\(\w{12}\).*target\.model"):
        check_bundle_target(manifest, "bundle", nano_r1)
    check_bundle_target(manifest, "bundle", other)
    check_bundle_target({KEY: None}, "bundle", nano_r1)
    speculator = shutil.copytree(nano_r1, tmp_path / "speculator")
    (speculator / "bundle.json").write_text(json.dumps(manifest))
    with pytest.raises(OutriderError, match="made for target deepseek-ai/DeepSeek-R1"):
        check_speculator(speculator, nano_r1)


def test_a_part_of_a_checkpoint_has_none(nano_r1: Path, tmp_path: Path) -> None:
    part = shutil.copytree(nano_r1, tmp_path / "part")
    index = {"weight_map": {"model.embed_tokens.weight": "model-00001.safetensors"}}
    (part / "model.safetensors").unlink()
    (part / "model.safetensors.index.json").write_text(json.dumps(index))
    assert target_fingerprint(part) is None
