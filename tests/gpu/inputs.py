"""Inputs of the checks: targets, engines, logged traffic, a weakened speculator.

rows = logged_rows(16)            # (id, token ids, completion start), as the engine saw them
"""

import itertools
from pathlib import Path

from safetensors.torch import load_file, save_file

from outrider.common.files import read_json
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.speculators.kinds import trainable_kind_of
from outrider.speculators.parity import ParityConfig
from tests.shipped_traffic import token_ids, with_token_ids
from tests.tiny import save_drafter
from tools.rehearsal.rehearse import R1_CONFIG, cut_config
from tools.rehearsal.target import write_random_target

NANO = TargetConfig(model="nano_r1")
K = 4
PARITY = ParityConfig(prompts=4, max_tokens=48, anchors=96)
RANDOM_PARITY = ParityConfig(
    prompts=16, max_tokens=48, anchors=256, near_tie_nats=0.3, min_agreement=0.9
)
"""For a random target: many of its logits are within 0.1 nats of each other."""

SIDES = {
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1024,
    "moe_intermediate_size": 256,
    "num_attention_heads": 8,
    "q_lora_rank": 256,
    "max_position_embeddings": 4096,
    "rope_scaling": None,
}
"""Smaller sides, multiples of 128 as vLLM's kernels need. Head widths and latent rank are R1's."""

Row = tuple[str, list[int], int]


def engine_config(on_gpu: bool, **changed: object) -> EngineConfig:
    """An engine as production runs it, or a small eager one.

    No MLA backend of vLLM's takes nano R1's head widths on a GPU, so it runs without MLA there.
    """
    if on_gpu:
        engine = EngineConfig(
            mode="compiled",
            max_num_seqs=32,
            max_num_batched_tokens=8192,
            gpu_memory_utilization=0.5,
            environment={"VLLM_MLA_DISABLE": "1"},
        )
    else:
        engine = EngineConfig(max_num_seqs=4, max_model_len=1024, kv_cache_gb=0.25)
    return engine.model_copy(update=changed)


def random_r1(folder: Path, *, fp8: bool) -> TargetConfig:
    """A random target with R1's head widths, so that it runs as MLA, and small other sides.

    Eight tokens have larger rows in both heads, so that a random draft is accepted now and then.
    """
    config = cut_config(read_json(R1_CONFIG), experts=8, fp8=fp8) | SIDES
    write_random_target(config, folder / "target")
    for file in (folder / "target").glob("*.safetensors"):
        tensors = load_file(file)
        for name in tensors:
            if name == "lm_head.weight" or name.endswith("shared_head.head.weight"):
                tensors[name][100:108] *= 30
        save_file(tensors, file, metadata={"format": "pt"})
    return TargetConfig(model=str(folder / "target"))


def logged_rows(count: int) -> list[Row]:
    """Logged exchanges with the ids that the engine read and sampled, which some rows have."""
    rows = itertools.islice(with_token_ids("resume_screening"), count)
    named = ((row["response"]["id"], *token_ids(row)) for row in rows)
    return [(name, prompt + completion, len(prompt)) for name, prompt, completion in named]


def logged_prompts(count: int) -> list[list[int]]:
    """The prompts of logged exchanges."""
    return [token_ids[:start] for _, token_ids, start in logged_rows(count)]


def weakened_speculator(target: TargetConfig, directory: Path) -> Path:
    """The target's own speculator with noise in its matrices, so that it drafts otherwise."""
    import torch

    target_dir = target.directory()
    drafter = trainable_kind_of(target_dir).load(target_dir, target_dir, torch.float32)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.dim() > 1:
                noise = torch.empty_like(parameter).normal_(generator=generator)
                parameter.add_(noise * parameter.std())
    save_drafter(drafter, target_dir, directory)
    return directory
