"""Memory that ZeRO-3 holds after forward, by depth of the unroll.

    MALLOC_MMAP_THRESHOLD_=131072 MALLOC_TRIM_THRESHOLD_=131072 OMP_NUM_THREADS=1 \\
        python -m torch.distributed.run --standalone --nproc_per_node=2 benchmarks/zero3.py

autograd's views of single experts keep gathered weights. The layer is nano R1's, wider and with 32
experts. DeepSpeed keeps weights gathered that are used again within 1e9 others. R1's layer has
11.6e9; setting the distance to 0 makes this one behave alike.
"""

import gc
from pathlib import Path
from typing import Any

import accelerate
import torch

from outrider.common.files import read_json
from outrider.serving.config import TargetConfig
from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds.mtp.layer import MTPSpeculator
from outrider.speculators.kinds.mtp.size import mtp_size
from outrider.speculators.layers.deepseek_layer import DeepseekArch
from outrider.training.config import TrainingConfig
from outrider.training.distributed.accelerator import (
    ChainUnroll,
    make_accelerator,
    prepare_model,
    start_environment,
)

WIDER = {
    "hidden_size": 1024,
    "moe_intermediate_size": 512,
    "n_routed_experts": 32,
    "n_group": 4,
    "topk_group": 2,
}
TOKENS = 16


def own_megabytes() -> float:
    gc.collect()
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in status if line.startswith("RssAnon"))


def main() -> None:
    start_environment()
    torch.set_num_threads(1)
    plain = accelerate.DeepSpeedPlugin

    def releasing(hf_ds_config: dict[str, Any]) -> Any:
        hf_ds_config["zero_optimization"] |= {
            "stage3_max_reuse_distance": 0,
            "stage3_prefetch_bucket_size": 0,
        }
        return plain(hf_ds_config=hf_ds_config)

    accelerate.DeepSpeedPlugin = releasing
    settings = TrainingConfig(zero_stage=3, processes=2, rows_per_step=2, wandb_project=None)
    accelerator = make_accelerator(settings, Path("/tmp"))
    torch.manual_seed(0)
    config = read_json(TargetConfig().directory() / "config.json") | WIDER
    arch = DeepseekArch.from_config(config)
    ends = TargetEnds(*(torch.randn(arch.vocab, arch.hidden).bfloat16() for _ in range(2)))
    unroll = ChainUnroll(MTPSpeculator(arch), ends, 1)
    model, optimizer = prepare_model(accelerator, unroll)
    place_BT = torch.arange(TOKENS)[None]
    tokens_BT, states_BTH = (
        torch.randint(0, arch.vocab, (1, TOKENS)),
        torch.randn(1, TOKENS, arch.hidden).bfloat16(),
    )
    row = (tokens_BT, states_BTH, torch.zeros_like(place_BT), place_BT, place_BT < TOKENS - 2)
    accelerator.print(f"experts: {mtp_size(config).routed_experts * 2 / 1e6:.1f} MB", flush=True)
    # The second run of each depth counts: DeepSpeed records the order of modules in the first.
    for depth in (1, 1, 2, 2, 4, 4):
        unroll.depth = depth
        before = own_megabytes()
        u_KNH = model(*row)
        accelerator.print(
            f"depth {depth}: forward holds {own_megabytes() - before:.0f} MB", flush=True
        )
        accelerator.backward(u_KNH.float().sum())
        optimizer.step()
        optimizer.zero_grad()
        del u_KNH


if __name__ == "__main__":
    main()
