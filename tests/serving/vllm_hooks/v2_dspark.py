"""Draft parity of DSpark heads, which only model runner V2 serves, before and after a swap.

    python -m tests.serving.vllm_hooks.v2_on_cpu \
        tests.serving.vllm_hooks.v2_dspark TARGET FOLDER SAMPLE_METHOD prompts.json
"""

import json
import sys
from pathlib import Path

import torch

from outrider.eval.replay.draft_parity import draft_parity, record
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import open_engine
from outrider.serving.speculator import Drafting, Speculator
from outrider.serving.vllm_hooks.draft_recorder import DRAFT_EXTENSION
from outrider.speculators.kinds import check_speculator
from outrider.speculators.parity import ParityConfig
from tests.dflash_head import write_dspark_head
from tests.serving.in_process import swap
from tests.tiny import edit_tensors

K = 3


def parities(
    target: TargetConfig,
    engine_config: EngineConfig,
    folder: Path,
    prompts: list[list[int]],
    parity: ParityConfig,
    sample_method: str = "greedy",
) -> dict[str, list[list[float]]]:
    """Sums of the comparison for the engine's first head, the one swapped in, and both crossed.

    The two draft other tokens of the target. At temperature 0, sampled drafts are greedy ones.
    """
    directory = target.directory()
    recordings = {}
    heads = [
        write_dspark_head(directory, folder / str(seed), seed, layers=(1, 2, 3), kv_heads=1)
        for seed in range(2)
    ]
    edit_tensors(heads[1], draft_every_third_token)
    for head in heads:
        check_speculator(head, directory)
    first, second = map(Speculator.from_name, heads)
    assert first.swaps_with(second)
    drafting = Drafting(first, K, sample_method)
    spec = first.features(directory)
    with open_engine(target, engine_config, drafting, extension=DRAFT_EXTENSION) as engine:
        assert engine.llm.llm_engine.vllm_config.use_v2_model_runner
        for head in heads:
            if recordings:
                swap(engine, head, heads[0], directory)
            recordings[head] = record(engine, spec, prompts, parity.max_tokens)

    def compared(recorded: Path, head: Path) -> list[list[float]]:
        return draft_parity(
            recording=recordings[recorded],
            speculator_dir=head,
            target_dir=directory,
            k=K,
            parity=parity,
        )

    one, two = heads
    pairs = {"first": (one, one), "second": (two, two), "crossed": (two, one)}
    return {name: compared(*pair) for name, pair in pairs.items()}


def draft_every_third_token(tensors: dict[str, torch.Tensor]) -> None:
    """Draft token i is the target's 3 i + 1."""
    draft_ids = torch.arange(len(tensors["d2t"]))
    tensors["d2t"] = 2 * draft_ids + 1
    tensors["t2d"] = torch.zeros_like(tensors["t2d"]).index_fill_(0, 3 * draft_ids + 1, True)


def main() -> None:
    """Few seats, and prompts longer than a step."""
    _, directory, folder, sample_method, file = sys.argv
    prompts = json.loads(Path(file).read_text())
    small = EngineConfig(max_num_batched_tokens=64, max_num_seqs=4)
    parity = ParityConfig(max_tokens=16, anchors=100)
    found = parities(
        target=TargetConfig(model=directory),
        engine_config=small,
        folder=Path(folder),
        prompts=prompts,
        parity=parity,
        sample_method=sample_method,
    )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
