"""Sets up accelerate and DeepSpeed for this process, alone or under torchrun.

    start_environment()                              # before accelerate is imported
    accelerator = make_accelerator(config, log_dir)
    unroll = ChainUnroll(drafter, ends, depth)
    model, optimizer = prepare_model(accelerator, unroll)
    drafted = unroll.drafted(batch, model)

Shapes: K depths, N anchors, H hidden, D draft vocabulary.
"""

import contextlib
import io
import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from outrider.common.errors import OutriderError
from outrider.speculators.heads import DraftHead, TargetEnds
from outrider.speculators.kinds.drafter import Batch, Drafter
from outrider.training.config import TrainingConfig
from outrider.training.memory import BUCKET
from outrider.training.packing import turns

if TYPE_CHECKING:
    from accelerate import Accelerator

_PATIENCE = timedelta(hours=3)
"""How long a process waits for the others while one converts or writes a checkpoint of R1's layer.
Ended processes are found in seconds, by fail_fast.py."""

COMPUTE_DTYPE = {"bf16": torch.bfloat16, "fp32": torch.float32}


class Drafted(NamedTuple):
    """The drafts of a row: states of every depth and the head that reads them."""

    u_KNH: Tensor
    head: DraftHead


class ChainUnroll(nn.Module):
    """The unroll of a drafter as one module's forward pass, as DeepSpeed needs it.

    E and W are not part of the module: frozen and never sharded.
    """

    def __init__(self, speculator: Drafter, ends: TargetEnds, depth: int):
        super().__init__()
        self.speculator = speculator
        self.ends = ends
        self.depth = depth

    def forward(
        self,
        token_ids_BT: Tensor,
        inputs_BTX: Tensor,
        sequence_BT: Tensor,
        position_BT: Tensor,
        anchor_BT: Tensor,
    ) -> Tensor | tuple[Tensor, ...]:
        """u [K, N, H] of the anchors in row-major order; with its own head also the head's tensors.

        They are copies: under ZeRO-3 the parameters are whole inside this pass only.
        """
        _, states = self.speculator.unroll(
            self.ends, token_ids_BT, inputs_BTX, sequence_BT, position_BT, anchor_BT, self.depth
        )
        head = self.speculator.head(self.ends)
        u_KNH = torch.stack(states)
        if head.weight_DH is self.ends.lm_head_VH:
            return u_KNH
        own = (head.weight_DH, head.confidence_1H)
        return (u_KNH, *(tensor.clone() for tensor in own if tensor is not None))

    def drafted(self, batch: Batch, wrapped: nn.Module | None = None) -> Drafted:
        """The drafts of a batch. `wrapped` is this module as DeepSpeed prepared it."""
        model = self if wrapped is None else wrapped
        out = model(
            batch.token_ids_BT,
            batch.inputs_BTX,
            batch.sequence_BT,
            batch.position_BT,
            batch.anchor_BT,
        )
        head = self.speculator.head(self.ends)
        if isinstance(out, Tensor):
            return Drafted(out, head)
        u_KNH, weight_DH, *confidence = out
        return Drafted(u_KNH, DraftHead(weight_DH, head.target_ids_D, *confidence))


def start_environment() -> None:
    """Sets what accelerate, DeepSpeed and torch's allocator read from the environment.

    A process without a launcher is rank 0 of 1. A CUDA build of torch that sees no GPU is an error,
    unless CUDA_VISIBLE_DEVICES hides them: on a CPU R1's layer would train for months.
    """
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    if torch.cuda.is_available():
        # Gradients of 15 GB and activations of every row's own size share the memory: blocks that
        # cannot grow would leave gaps. Read at the first allocation.
        if not {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"} & os.environ.keys():
            os.environ["PYTORCH_ALLOC_CONF"] = "expandable_segments:True"
    elif torch.version.cuda and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
        raise OutriderError(
            f"torch {torch.__version__} is a build for CUDA {torch.version.cuda} and sees no GPU;"
            " update the driver if nvidia-smi lists GPUs (requirements/setup.sh names the version),"
            " start the container with its GPUs, or set CUDA_VISIBLE_DEVICES= to train on the CPU"
        )
    else:
        os.environ["DS_ACCELERATOR"] = "cpu"
    if "RANK" not in os.environ:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def make_accelerator(config: TrainingConfig, log_dir: Path) -> "Accelerator":
    """An Accelerator over DeepSpeed with the recipe's ZeRO stage; a row is a micro-batch."""
    import deepspeed.ops
    from accelerate import Accelerator, DeepSpeedPlugin
    from accelerate.utils import InitProcessGroupKwargs

    # DeepSpeed would compile its shared-memory collectives for CPUs at first use; gloo needs no
    # compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    rows_each = turns(config.rows_per_step, int(os.environ["WORLD_SIZE"]))
    settings: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": rows_each,
        "gradient_clipping": config.max_grad_norm,
        "zero_optimization": {
            "stage": config.zero_stage,
            "reduce_bucket_size": BUCKET,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "bf16": {"enabled": config.compute == "bf16"},
        # In bf16 a sum loses every addend below 1/512 of it: of 32 rows' gradients, or of 8
        # processes'. DeepSpeed's defaults are bf16 for both.
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        # DeepSpeed's Adam kernels need a compiler at run time; torch's is as fast for one layer.
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": config.learning_rate,
                "betas": (0.9, 0.95),
                "weight_decay": 0.0,  # the warm start generalizes, and decay pulls away from it
                "torch_adam": True,
                # In place: other implementations build square roots of the moments, 8 more bytes
                # a weight.
                "fused": True,
            },
        },
        "steps_per_print": 10**9,
    }
    # Without gloo named, each process on a CPU runs as if alone.
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    return Accelerator(
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=settings),
        gradient_accumulation_steps=rows_each,
        kwargs_handlers=[InitProcessGroupKwargs(backend=backend, timeout=_PATIENCE)],
        log_with="wandb" if config.wandb_project else None,
        project_dir=str(log_dir),
    )


def prepare_model(accelerator: "Accelerator", model: ChainUnroll) -> tuple[nn.Module, Any]:
    """The model and its optimizer under DeepSpeed, float32 buffers kept as they are."""
    from accelerate.utils import DummyOptim

    buffers = dict(model.named_buffers())  # a cast replaces a module's buffers by new tensors
    with contextlib.redirect_stdout(io.StringIO()):  # DeepSpeed prints its use of memory
        prepared, optimizer = accelerator.prepare(model, DummyOptim(model.parameters()))
    # bf16 would also round buffers such as a routing bias, and route tokens differently from the
    # engine.
    for name, buffer in model.named_buffers():
        buffer.data = buffers[name].to(accelerator.device)
    return prepared, optimizer
