"""Targets, heads and commands of other people: each is planned, read, or refused with the fix.

`elsewhere.json` has the source and the right outcome of each, written before its first run, and
whether that run was right (`first_run`).
"""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import outrider
from outrider.common.errors import OutriderError
from outrider.pipeline.new_recipe import write_recipe
from outrider.pipeline.plan.target_size import target_size
from outrider.serving.commands.serve_command import read_serve_command
from outrider.speculators.checkpoints.layout import read_target_config
from outrider.speculators.kinds import check_speculator, drafter_kind_of
from tests.cli.workplace import write_workplace
from tests.published_configs import PUBLISHED
from tests.tiny_decoders import TOKENIZER

BYTES = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "I32": 4, "BOOL": 1, "F8_E4M3": 1}

CASES = json.loads(Path(__file__).with_name("elsewhere.json").read_text())


def cases_with(key: str) -> Any:
    return pytest.mark.parametrize(
        "case", [pytest.param(c, id=c["name"]) for c in CASES if key in c]
    )


def write_target(case: dict[str, Any], folder: Path, tokenizer_of: Path) -> Path:
    folder.mkdir()
    (folder / case.get("config_name", "config.json")).write_text(json.dumps(case["config"]))
    if "hf_quant_config" in case:
        (folder / "hf_quant_config.json").write_text(json.dumps(case["hf_quant_config"]))
    for name in case.get("files_beside", ()):
        (folder / name).touch()
    for name in TOKENIZER:
        shutil.copyfile(tokenizer_of / name, folder / name)
    return folder


def write_zeros(tensors: dict[str, tuple[str, list[int]]], path: Path) -> None:
    """Writes tensors of a head's shapes; zeros take no room on the disk, and t2d marks the first.

    `tensors` has the dtype and shape of each name, as in a safetensors header.
    """
    header = {}
    end = 0
    for name, (dtype, shape) in tensors.items():
        begin = end
        end += math.prod(shape) * BYTES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
        if "t2d" in tensors:
            file.seek(8 + len(text) + header["t2d"]["data_offsets"][0])
            file.write(b"\1" * tensors["d2t"][1][0])


@cases_with("config")
def test_a_target_is_planned_or_refused(
    case: dict[str, Any], tmp_path: Path, nano_r1: Path
) -> None:
    target = write_target(case, tmp_path / "target", nano_r1)
    write_workplace(tmp_path, nano_r1, {}, count=12)
    words = ("r1_distill/template", f"target.model={target}", f"traffic.path={tmp_path}/log.jsonl")
    if "refused" in case:
        with pytest.raises(OutriderError, match=case["refused"]):
            outrider.open(*words, runs=tmp_path / "runs", dry_run=True)
    else:
        path, _ = write_recipe(str(tmp_path / "log.jsonl"), str(target), tmp_path / "new.yaml")
        opened = outrider.open(path, runs=tmp_path / "runs", dry_run=True)
        assert opened.recipe.speculator.kind == case.get("kind", "eagle3")
    if "gigabytes" in case:
        size = target_size(read_target_config(target)).weight_bytes / 1e9
        assert size == pytest.approx(case["gigabytes"], rel=case.get("tolerance", 0.01))


@cases_with("head")
def test_a_head_is_read_or_refused(case: dict[str, Any], tmp_path: Path, nano_r1: Path) -> None:
    of_target = {"config": case.get("target_of_head", PUBLISHED["Llama-3.1-8B"][0])}
    target = write_target(of_target, tmp_path / "target", nano_r1)
    save_file({"model.embed_tokens.weight": torch.zeros(4, 8)}, target / "model.safetensors")
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_text(json.dumps(case["head"]))
    tensors = {"fc.weight": torch.zeros(4, 8)}
    if "tensors" in case:
        write_zeros(case["tensors"], head / "model.safetensors")
    elif "model.safetensors" in case["files"]:
        save_file(tensors, head / "model.safetensors")
    else:
        torch.save(tensors, head / "pytorch_model.bin")
    if "refused" in case:
        with pytest.raises(OutriderError, match=case["refused"]):
            check_speculator(head, target)
    else:
        check_speculator(head, target)
        assert drafter_kind_of(head).name == case["kind"]


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
