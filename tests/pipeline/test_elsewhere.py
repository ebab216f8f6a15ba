"""Targets, heads and commands of other people: each is planned, read, or refused with the fix.

`elsewhere.json` has the source and the right outcome of each, written before its first run, and
whether that run was right (`first_run`).
"""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import outrider
from outrider.cli.init import write_recipe
from outrider.common.errors import OutriderError
from outrider.pipeline.plan.target_size import target_size
from outrider.serving.serve_command import read_serve_command
from outrider.speculators.checkpoints.layout import read_target_config
from outrider.speculators.kinds import check_speculator
from tests.cli.workplace import write_workplace
from tests.published_configs import PUBLISHED
from tests.tiny_decoders import TOKENIZER

CASES = json.loads(Path(__file__).with_name("elsewhere.json").read_text())


def cases_with(key: str) -> Any:
    return pytest.mark.parametrize(
        "case", [pytest.param(c, id=c["name"]) for c in CASES if key in c]
    )


def write_target(config: dict[str, Any], folder: Path, tokenizer_of: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    for name in TOKENIZER:
        shutil.copyfile(tokenizer_of / name, folder / name)
    return folder


@cases_with("config")
def test_a_target_is_planned_or_refused(
    case: dict[str, Any], tmp_path: Path, nano_r1: Path
) -> None:
    target = write_target(case["config"], tmp_path / "target", nano_r1)
    write_workplace(tmp_path, nano_r1, {})
    words = ("r1_distill/template", f"target.model={target}", f"traffic.path={tmp_path}/log.jsonl")
    if "refused" in case:
        with pytest.raises(OutriderError, match=case["refused"]):
            outrider.open(*words, runs=tmp_path / "runs", dry_run=True)
    else:
        path, _ = write_recipe(str(tmp_path / "log.jsonl"), str(target), tmp_path / "new.yaml")
        opened = outrider.open(path, runs=tmp_path / "runs", dry_run=True)
        assert opened.recipe.speculator.kind == "eagle3"
    if "gigabytes" in case:
        size = target_size(read_target_config(target)).weight_bytes / 1e9
        assert size == pytest.approx(case["gigabytes"], rel=case.get("tolerance", 0.01))


@cases_with("head")
def test_a_head_is_refused_by_name(case: dict[str, Any], tmp_path: Path, nano_r1: Path) -> None:
    target = write_target(PUBLISHED["Llama-3.1-8B"][0], tmp_path / "target", nano_r1)
    save_file({"model.embed_tokens.weight": torch.zeros(4, 8)}, target / "model.safetensors")
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_text(json.dumps(case["head"]))
    tensors = {"fc.weight": torch.zeros(4, 8)}
    if "model.safetensors" in case["files"]:
        save_file(tensors, head / "model.safetensors")
    else:
        torch.save(tensors, head / "pytorch_model.bin")
    with pytest.raises(OutriderError, match=case["refused"]):
        check_speculator(head, target)


@cases_with("command")
def test_a_command_is_read_or_refused(case: dict[str, Any]) -> None:
    if "refused" in case:
        with pytest.raises(OutriderError, match=case["refused"]):
            read_serve_command(case["command"])
        return
    command = read_serve_command(case["command"])
    for path, expected in case["values"].items():
        value: Any = command.values
        for key in path.split("."):
            value = value[key]
        assert value == expected, path
    assert not command.unknown
