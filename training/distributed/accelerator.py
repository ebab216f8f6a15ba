"""Sets up accelerate and DeepSpeed for this process, alone or under torchrun.

    set_training_environment()                              # before accelerate is imported
    accelerator = make_accelerator(config, log_dir)
    unroll = ChainUnroll(drafter, ends, depth)
    model, optimizer = prepare_model(accelerator, unroll)
    drafted = unroll.unroll_batch(batch, model)

Shapes: K depths, N anchors, H hidden, D draft vocabulary.
"""

import contextlib
import dataclasses
import io
import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from outrider.common.errors import OutriderError
from outrider.speculators.heads import DraftHead, TargetEnds
from outrider.speculators.kinds.drafter import Batch, Drafter
from outrider.speculators.unroll import Slots
from outrider.training.config import TrainingConfig
from outrider.training.memory import BUCKET
from outrider.training.packing import rows_per_process
from outrider.training.trackers import check_trackers

if TYPE_CHECKING:
    from accelerate import Accelerator

_PATIENCE = timedelta(hours=3)
"""Timeout for collectives.
Ranks wait while one converts or writes R1's layer; fail_fast.py detects failures in seconds."""

COMPUTE_DTYPE = {"bf16": torch.bfloat16, "fp32": torch.float32}


class UnrolledDrafts(NamedTuple):
    """A row's drafts: states at every depth, and the head for them."""

    u_KNH: Tensor
    head: DraftHead


class ChainUnroll(nn.Module):
    """Runs a drafter's unroll as one forward pass, as DeepSpeed requires.

    The target's embedding and head are not registered, since they are frozen and never sharded.
    """

    def __init__(self, speculator: Drafter, ends: TargetEnds, depth: int):
        super().__init__()
        self.speculator = speculator
        self.ends = ends
        self.depth = depth

    def forward(self, *slots: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Returns u [K, N, H] of the anchors in row-major order, from the tensors of `Slots`.

        A drafter's own head is also returned, as copies of its tensors, because under ZeRO-3
        parameters are whole only during this pass.
        """
        _, states = self.speculator.unroll(self.ends, Slots(*slots), self.depth)
        head = self.speculator.head(self.ends)
        u_KNH = torch.stack(states)
        if head.weight_DH is self.ends.lm_head_VH:
            return u_KNH
        return (u_KNH, *(getattr(head, name).clone() for name in head.trained_fields))

    def unroll_batch(self, batch: Batch, wrapped: nn.Module | None = None) -> UnrolledDrafts:
        """Returns a batch's drafts; `wrapped` is this module prepared by DeepSpeed."""
        model = self if wrapped is None else wrapped
        out = model(*(getattr(batch, field.name) for field in dataclasses.fields(Slots)))
        head = self.speculator.head(self.ends)
        if isinstance(out, Tensor):
            return UnrolledDrafts(out, head)
        # A new head from the copies: the parameters themselves are empty again under ZeRO-3.
        u_KNH, *tensors = out
        copies = dict(zip(head.trained_fields, tensors, strict=True))
        return UnrolledDrafts(u_KNH, dataclasses.replace(head, **copies))


def set_training_environment() -> None:
    """Sets the environment variables of accelerate, DeepSpeed and torch's allocator.

    A process without a launcher is rank 0 of 1. Raises an `OutriderError` if a CUDA build of torch
    sees no GPU, unless CUDA_VISIBLE_DEVICES is empty (R1's layer would train for months on a CPU),
    or if the process does not see the GPU of its rank.
    """
    os.environ["ACCELERATE_USE_DEEPSPEED"] = "true"
    if torch.cuda.is_available():
        _require_gpu()
        # 15 GB of gradients share the memory with activations whose size varies by row, so blocks
        # that cannot grow would leave gaps. torch reads this at the first allocation.
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


def _require_gpu() -> None:
    """Raises an `OutriderError` if this process does not see the GPU of its LOCAL_RANK.

    DeepSpeed selects it by that number (comm/torch.py, `init_process_group`). In a process that
    sees only its own GPU, torch would report an invalid device ordinal.
    """
    rank = int(os.environ.get("LOCAL_RANK", "0"))
    gpus = torch.cuda.device_count()
    if rank >= gpus:
        raise OutriderError(
            f"LOCAL_RANK = {rank}, but the process sees {gpus} of its machine's GPUs; let every"
            " process see all of them (srun: without --gpus-per-task and --gpu-bind), and start at"
            " most one process per GPU"
        )


def make_accelerator(config: TrainingConfig, log_dir: Path) -> "Accelerator":
    """Returns an Accelerator over DeepSpeed; each row is a micro-batch."""
    import deepspeed.ops
    from accelerate import Accelerator, DeepSpeedPlugin
    from accelerate.utils import InitProcessGroupKwargs, ProjectConfiguration

    # Launchers and Ray start it in environments that the command has not seen.
    check_trackers(config)

    # DeepSpeed would compile its shared-memory collectives for CPUs at first use; gloo needs no
    # compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    rows_each = rows_per_process(config.rows_per_step, int(os.environ["WORLD_SIZE"]))
    # Without gloo, each CPU process would run alone.
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    return Accelerator(
        deepspeed_plugin=DeepSpeedPlugin(hf_ds_config=_deepspeed_settings(config, rows_each)),
        gradient_accumulation_steps=rows_each,
        kwargs_handlers=[InitProcessGroupKwargs(backend=backend, timeout=_PATIENCE)],
        log_with=config.used_trackers,
        project_config=ProjectConfiguration(
            project_dir=str(log_dir), logging_dir=str(log_dir / "tensorboard")
        ),
    )


def _deepspeed_settings(config: TrainingConfig, rows_each: int) -> dict[str, object]:
    """DeepSpeed's configuration, for `rows_each` rows per process and step."""
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": rows_each,
        "gradient_clipping": config.max_grad_norm,
        "zero_optimization": {
            "stage": config.zero_stage,
            "reduce_bucket_size": BUCKET,
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "bf16": {"enabled": config.compute == "bf16"},
        # A bf16 sum loses addends below 1/512 of its value, which affects gradients summed over
        # 32 rows or 8 processes. DeepSpeed sums over both in bf16 by default.
        "data_types": {"grad_accum_dtype": "fp32"},
        "communication_data_type": "fp32",
        # DeepSpeed's Adam kernels need a compiler at run time; torch's are as fast for one layer.
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": config.learning_rate,
                "betas": (0.9, 0.95),
                "weight_decay": 0.0,  # decay would erode the warm start, which generalizes
                "torch_adam": True,
                # Unfused variants allocate 8 bytes per weight for the moments' square roots.
                "fused": True,
            },
        },
        "steps_per_print": 10**9,
    }


def prepare_model(
    accelerator: "Accelerator", model: ChainUnroll
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Prepares model and optimizer with DeepSpeed; float32 buffers keep their values."""
    from accelerate.utils import DummyOptim
    from deepspeed.utils import groups
    from torch.distributed.distributed_c10d import _set_pg_timeout

    buffers = dict(model.named_buffers())  # a cast replaces a module's buffers with new tensors
    with contextlib.redirect_stdout(io.StringIO()):  # DeepSpeed prints its memory use
        prepared, optimizer = accelerator.prepare(model, DummyOptim(model.parameters()))
    # DeepSpeed reduces gradients in a group of its own, whose timeout would be ten minutes.
    _set_pg_timeout(_PATIENCE, groups._get_data_parallel_group())
    # DeepSpeed also casts buffers to bf16; a rounded routing bias would change the routing.
    for name, buffer in model.named_buffers():
        buffer.data = buffers[name].to(accelerator.device)
    return prepared, optimizer
