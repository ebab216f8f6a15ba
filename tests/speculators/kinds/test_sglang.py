"""SGLang's own parser, loader and models read what is exported, to the last element.

    python -m pytest tests/speculators/kinds/test_sglang.py -m slow          # two minutes

requirements/sglang.sh makes the environment, and sglang_process.py runs in it, without a GPU; no
kernel is called. The flags are those of docs/how-to/sglang.md. test_sglang_loads.py has the same
names and shapes as a table, for `make test`.
"""

import json
import math
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from outrider.common.files import read_json, write_json
from outrider.speculators.head_config import HeadConfig
from outrider.speculators.kinds.eagle3.kind import Eagle3
from outrider.speculators.kinds.eagle3.shape import plain_eagle_config
from outrider.speculators.kinds.mtp.kind import MTP
from outrider.speculators.kinds.protocol import Origin
from tests.eagle3_head import write_eagle3_head
from tests.fp8_target import write_fp8_copy
from tests.r1_config import R1
from tests.tiny import VOCAB, tiny_glm, write_tiny_target

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
PYTHON = ROOT / "build" / "sglang" / "venv" / "bin" / "python"
K = 3

OF_TARGET = {"model.embed_tokens.weight", "lm_head.weight"}
"""NextN's parameters that SGLang replaces with the target's; of EAGLE-3, only the first."""

OF_KV_CACHE = {
    f"model.decoder.self_attn.attn_{kind}.{name}_scale" for kind in ("mqa", "mha") for name in "kv"
}
"""Scales of an FP8 KV cache: no checkpoint of DeepSeek has them, and SGLang takes 1."""

WIDTHS = {
    "hidden_size": 256,
    "intermediate_size": 256,
    "moe_intermediate_size": 128,
    "q_lora_rank": 128,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 64,
}
"""SGLang's experts need multiples of an FP8 block. The scales of kv_a_proj_with_mqa (192 rows) end
with half a block, as R1's do (576 rows)."""

OF_R1 = {
    "rope_theta": R1["rope_theta"],
    "rope_scaling": R1["rope_scaling"],  # the only embedding that SGLang computes on a CPU
    "moe_layer_freq": 1,
    # Published with the Python file that it names, which bundles do not contain.
    "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
}
"""Keys of R1's config.json that transformers writes otherwise, or not at all."""

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 1024,
    "intermediate_size": 2048,
    "num_attention_heads": 8,
    "num_hidden_layers": 36,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "vocab_size": 1000,
}
LAYERS = ((2, 30, 33), (1, 18, 33), (4, 9, 20), (1, 2, 3, 30), (7,), (2,))

HEADS: dict[str, dict[str, Any]] = {
    "head": {},
    "head_of_all_tokens": {"draft_vocabulary": "all"},
    "head_of_one_state": {"layers": (2,)},
    "latent_head": {"layer_type": "mla"},
}
BASES: dict[str, dict[str, Any]] = {
    "base": {},
    "base_with_one_norm": {"norm_before_fc": True},
    "base_with_norms": {"fc_norm": True, "norm_output": True},
}

Result = dict[str, Any]


def write_r1_like(directory: Path) -> Path:
    """A tiny target whose config.json has R1's keys, with the Python file that it names."""
    write_tiny_target(directory, **WIDTHS)
    write_config(directory, read_json(directory / "config.json") | OF_R1)
    return directory


def write_config(directory: Path, config: dict[str, Any]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    config.pop("rope_parameters", None)  # transformers 5 writes it in place of R1's two keys
    write_json(directory / "config.json", config)
    if "auto_map" in config:
        text = "from transformers import DeepseekV3Config\n"
        (directory / "configuration_deepseek.py").write_text(text)
    return directory


def flags(of_layer: bool, bundle: Path) -> list[str]:
    """The documented flags for an MTP layer, or for a head."""
    page = (ROOT / "docs" / "how-to" / "sglang.md").read_text(encoding="utf-8")
    command_of_lines = r"^ {4}(--speculative-algorithm (?:.*\\\n)*.*)"
    commands = re.findall(command_of_lines, page, re.MULTILINE)
    (command,) = [text for text in commands if ("sglang_nextn" in text) == of_layer]
    command = command.replace("\\\n", " ").replace("BUNDLE", str(bundle))
    values = {"K": str(K), "K+1": str(K + 1)}
    return [values.get(word, word) for word in command.split()]


def job(target: Path, bundle: Path, of_layer: bool, load: bool = True) -> dict[str, Any]:
    command = ["--model-path", str(target), "--trust-remote-code", "--skip-tokenizer-init"]
    return {
        "arguments": [*command, "--device", "cpu", *flags(of_layer, bundle)],
        "load": load,
    }


def export_layer(target: Path, bundle: Path) -> Path:
    """A bundle with the target's own layer, and SGLang's copy of it."""
    kind = MTP()
    kind.write(iter(()), Origin(target, None), bundle)
    kind.write_other_formats(bundle, target, "tiny", K, bundle)
    return bundle


def export_head(target: Path, bundle: Path, base: Path | None = None, **settings: Any) -> Path:
    """A new head with the draft tokens 3, 5, 40, 41 and 42, or a base's."""
    counts_V = torch.zeros(VOCAB, dtype=torch.long)
    counts_V[[5, 3, 40, 41, 42]] = torch.tensor([9, 7, 5, 3, 1])
    head = HeadConfig(**{"draft_vocabulary": 5, "layers": (1, 2)} | settings)
    origin = Origin(target, base, head, (lambda: counts_V[None]) if base is None else None)
    kind = Eagle3()
    module = kind.start(origin, torch.float32, "cpu", seed=1)
    kind.write(kind.trained_tensors(module, module.state_dict()), origin, bundle)
    return bundle


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("sglang")


@pytest.fixture(scope="module")
def targets(folder: Path) -> dict[str, Path]:
    plain = write_r1_like(folder / "r1")
    fp8 = write_fp8_copy(plain, folder / "fp8")
    glm = write_tiny_target(folder / "glm", config=tiny_glm())
    return {"bf16": plain, "fp8": fp8, "glm": glm}


@pytest.fixture(scope="module")
def bundles(folder: Path, targets: dict[str, Path]) -> dict[str, Path]:
    """All that is loaded, by name."""
    exported = {
        name: export_layer(target, folder / "bundles" / name) for name, target in targets.items()
    }
    wrong = exported["bf16"].with_name("wrong")
    write_config(wrong / "sglang_nextn", read_json(exported["bf16"] / "config.json"))
    (wrong / "sglang_nextn" / "model.safetensors").symlink_to(
        exported["bf16"] / "sglang_nextn" / "model.safetensors"
    )
    plain = exported["bf16"].with_name("plain")
    plain.mkdir()
    (plain / "sglang_nextn").symlink_to(exported["bf16"])
    exported |= {"wrong": wrong, "plain": plain}
    for name, settings in HEADS.items():
        exported[name] = export_head(targets["bf16"], folder / "bundles" / name, **settings)
    for name, settings in BASES.items():
        base = write_eagle3_head(
            targets["bf16"], folder / "bases" / name, layers=(1, 2), kv_heads=2, **settings
        )
        exported[name] = export_head(targets["bf16"], folder / "bundles" / name, base)
    return exported


def layer_targets(folder: Path) -> dict[str, Path]:
    """config.json of deeper targets; their weights are never read."""
    r1 = {name: value for name, value in R1.items() if name != "quantization_config"}
    return {
        "r1": write_config(folder / "r1_61_layers", r1 | OF_R1),
        "llama": write_config(folder / "llama_36_layers", LLAMA),
    }


@pytest.fixture(scope="module")
def results(folder: Path, targets: dict[str, Path], bundles: dict[str, Path]) -> dict[str, Result]:
    """What SGLang makes of each bundle, by name; the layers' by target and layers."""
    made = subprocess.run(
        ["sh", "requirements/sglang.sh"], cwd=ROOT, capture_output=True, text=True
    )
    if made.returncode:
        pytest.skip(f"requirements/sglang.sh: {made.stderr.strip()[-500:]}")
    jobs = {}
    for name, bundle in bundles.items():
        target = targets.get(name, targets["bf16"])
        jobs[name] = job(target, bundle, of_layer=(bundle / "sglang_nextn").is_dir())
    for name, target in layer_targets(folder).items():
        for layers in LAYERS:
            head = HeadConfig(layers=layers, layer_type="llama")
            config = plain_eagle_config(read_json(target / "config.json"), head, 64)
            bundle = write_config(folder / "layers" / name / "_".join(map(str, layers)), config)
            jobs[f"{name}{layers}"] = job(target, bundle, of_layer=False, load=False)
    written = folder / "results.json"
    write_json(folder / "jobs.json", list(jobs.values()))
    process = Path(__file__).with_name("sglang_process.py")
    finished = subprocess.run(
        [PYTHON, process, folder / "jobs.json", written],
        cwd=folder,
        env=os.environ | {"CUDA_VISIBLE_DEVICES": "", "HF_HOME": str(folder / "hub")},
        capture_output=True,
        text=True,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return dict(zip(jobs, json.loads(written.read_text()), strict=True))


def check_all_is_filled(result: Result, unfilled: set[str]) -> None:
    """Each tensor fills its own elements, and all tensors together fill all others."""
    assert "error" not in result, result["error"]
    assert result["unfilled"].keys() == unfilled
    placed = result["placed"]
    for name, parts in placed.items():
        assert len(parts) == 1 and parts[0]["equal"], f"{name}: {parts}"
    filled = sum(part["elements"] for (part,) in placed.values())
    remaining = [*result["unfilled"].values(), *result["of_loader"].values()]
    assert filled + sum(remaining) == sum(result["elements"].values())


@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        ("bf16", "DeepseekV3ForCausalLMNextN"),
        ("fp8", "DeepseekV3ForCausalLMNextN"),
        ("glm", "Glm4MoeForCausalLMNextN"),
        ("plain", "DeepseekV3ForCausalLMNextN"),
    ],
)
def test_the_layer_fills_sglangs_module(
    name: str, architecture: str, bundles: dict[str, Path], results: dict[str, Result]
) -> None:
    result = results[name]
    check_all_is_filled(result, OF_TARGET | (OF_KV_CACHE if name == "fp8" else set()))
    assert result["architecture"] == architecture
    assert result["quantization"] == ("fp8" if name == "fp8" else None)
    tensors = load_file(bundles[name] / "sglang_nextn" / "model.safetensors")
    assert result["placed"].keys() == tensors.keys()
    assert not result["of_loader"]


def test_a_layer_under_another_number_fills_nothing(results: dict[str, Result]) -> None:
    """The check sees what SGLang does not report: the layer's tensors with the target's config."""
    result = results["wrong"]
    assert "error" not in result
    assert result["placed"] and not any(result["placed"].values())
    assert result["unfilled"] == result["elements"]


@pytest.mark.parametrize("name", [*HEADS, *BASES])
def test_the_head_fills_sglangs_module(
    name: str, bundles: dict[str, Path], results: dict[str, Result]
) -> None:
    result = results[name]
    check_all_is_filled(result, {"model.embed_tokens.weight"})
    config = read_json(bundles[name] / "config.json")
    of_llama = name != "latent_head"
    assert [result["architecture"]] == config["architectures"]
    assert (result["architecture"] == "LlamaForCausalLMEagle3") == of_llama
    tensors = load_file(bundles[name] / "model.safetensors")
    assert result["placed"].keys() | result["not_floating"] == tensors.keys()
    # Rows up to the next multiple of 64, which the loader sets to zero.
    drafts = config["draft_vocab_size"]
    padding = (math.ceil(drafts / 64) * 64 - drafts) * config["hidden_size"]
    assert result["of_loader"] == {"lm_head.weight": padding}
    if drafts == VOCAB:
        assert result["draft_tokens"] is None
    else:
        ids_D = tensors["d2t"] + torch.arange(drafts)
        assert result["draft_tokens"] == ids_D.tolist()
    assert result["layers"] == config["eagle_aux_hidden_state_layer_ids"]


def test_sglang_takes_the_documented_flags(
    bundles: dict[str, Path], results: dict[str, Result]
) -> None:
    for name, algorithm, directory in [
        ("bf16", "EAGLE", bundles["bf16"] / "sglang_nextn"),
        ("head", "EAGLE3", bundles["head"]),
    ]:
        result = results[name]
        assert result["algorithm"] == algorithm
        assert result["draft"] == str(directory)
        assert result["steps"] == K and result["topk"] == 1
        assert result["draft_tokens_per_step"] == K + 1


@pytest.mark.parametrize("target", ["r1", "llama"])
@pytest.mark.parametrize("layers", LAYERS, ids=str)
def test_the_layers_that_were_trained_are_captured(
    target: str, layers: tuple[int, ...], results: dict[str, Result]
) -> None:
    result = results[f"{target}{layers}"]
    assert "error" not in result, result["error"]
    assert result["layers"] == list(layers)
