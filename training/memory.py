"""Predicts the memory of one training process by part and phase.

    plan = MemoryPlan(size, row_tokens=8192, depth=3, zero_stage=2)
    needed = plan.phases()                # {"start": {part: bytes}, "steps": ...}
    plan.peak()                           # ("steps", bytes)

The peak is in the closed-form fit of a head; at the start, with the base speculator in
float32 next to the prepared one (step-0 parity); in backward; or, on a CPU, in the copies of a
checkpoint. The largest row is one response that fills it. Weights, master weights, moments and the
sum of gradients over rows take the bytes that DeepSpeed estimates: 2 P + 18 P / n for P weights, n
processes and ZeRO-2 in bf16 (`estimate_zero2_model_states_mem_needs`). But every depth uses every
weight, so autograd holds whole gradients until depth 0: 2 P instead of 2 P / n, plus the newest
gradient of the largest tensor. Activations are counted on the meta device (speculators/size.py).
"""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from outrider.speculators.kinds.protocol import TrainedParameters
from outrider.speculators.size import DrafterSize

if TYPE_CHECKING:
    import torch

CHUNK_LOGITS = {"cpu": 2**21, "cuda": 2**26}
"""Logits per loss chunk: 8 MB in float32, a CPU's cache, or 256 MB, enough to saturate a GPU."""

CHUNK_ROWS = 256
"""Minimum rows per chunk; with fewer, reading W takes longer than the product."""

CHUNK_COPIES = 5
"""Number of [chunk, vocabulary] tensors in float32 at the loss's peak."""

BUCKET = 100_000_000
"""Number of gradient elements that DeepSpeed reduces together.
200 MB in bf16 plus a float32 copy keep NVLink busy; DeepSpeed's default is five times as large."""

ROWS_IN_FLIGHT = 3
"""Rows in host memory: one in use, two read ahead (training/batches.py)."""

KEPT_AT_MOST = 4_000_000_000
"""If a full row would keep more bytes, backward recomputes every depth.
This costs a third more FLOPs in the layer. R1's layer keeps 22 GB for 8,192 tokens and 86 GB for
32,768; with recomputation, 4 and 16 GB, plus 6 and 25 GB for the depth in progress."""

CUDA_CONTEXT = 1_500_000_000
"""Bytes for CUDA's context, NCCL's buffers and cuBLAS's workspace; assumed, not measured."""

LIBRARIES = 550_000_000
"""Bytes of Python, torch and DeepSpeed in a training process, measured on a CPU."""


@dataclasses.dataclass(frozen=True)
class MemoryPlan:
    """The settings that determine the memory of a training process."""

    size: DrafterSize
    row_tokens: int
    depth: int
    zero_stage: int = 1
    processes: int = 1
    """Number of processes across all nodes."""
    compute: Literal["bf16", "fp32"] = "bf16"
    trained_parameters: TrainedParameters = "all"
    lora_rank: int = 0
    device: Literal["cpu", "cuda"] = "cuda"
    warm: bool = True
    """Whether training starts from a base, which step-0 parity runs in float32."""
    fitted: bool = False
    """Whether a closed-form fit gives the initial weights, or is compared with the base."""
    sequence: tuple[int, int] | None = None
    """Token and anchor counts if the row holds a single sequence; None: a full row."""

    @property
    def row(self) -> tuple[int, int]:
        """Token and anchor counts of the row; chains start at anchors."""
        return self.sequence or (self.row_tokens, self.row_tokens - 2)

    @property
    def num_trained_parameters(self) -> int:
        """Number of parameters with gradients."""
        return self.size.num_trained_parameters(self.trained_parameters, self.lora_rank)

    def peak(self) -> tuple[str, int]:
        """Returns the phase with the largest memory, and its bytes."""
        totals = {phase: sum(parts.values()) for phase, parts in self.phases().items()}
        phase = max(totals, key=totals.__getitem__)
        return phase, totals[phase]

    def phases(self) -> dict[str, dict[str, int]]:
        """Returns each phase's bytes by part; a phase's parts coexist."""
        always = self._always()
        phases = {"start": always | self._start(), "steps": always | self._steps()}
        if self.fitted:
            phases["fit"] = self._fit(always)
        if self.device == "cpu":
            copied = {"adam_moments": 8 * self._share, "checkpoint_copy": 12 * self._share}
            phases["checkpoint"] = always | copied
        return {
            phase: {part: int(value) for part, value in parts.items() if value}
            for phase, parts in phases.items()
        }

    def checkpoint_bytes(self) -> int:
        """Returns the checkpoint's size: float32 master weights and moments."""
        # 4 bytes each for the master weight and Adam's two moments.
        return 12 * self.num_trained_parameters

    def host_bytes(self, processes: int) -> int:
        """Returns the host memory of a node with `processes` processes.

        On a CPU, this is their entire memory. With GPUs, each process holds rows, libraries, its
        share of a checkpoint, and the embedding and head while they load; the first process also
        holds the weights that it publishes.
        """
        if self.device == "cpu":
            return self.peak()[1] * processes
        of_process = self._ends + ROWS_IN_FLIGHT * self._row_bytes + LIBRARIES + 12 * self._share
        return int(processes * of_process + self._b * self.num_trained_parameters)

    @property
    def recompute(self) -> bool:
        """Whether backward recomputes every depth; the largest possible row decides."""
        can = self.size.drafter.input_values() > 0
        return can and self._kept(self.row_tokens, self.row_tokens - 2, self.depth) > KEPT_AT_MOST

    @property
    def _b(self) -> int:
        return 2 if self.compute == "bf16" else 4

    @property
    def _share(self) -> float:
        """Number of trained weights in one process's share."""
        return self.num_trained_parameters / self.processes

    @property
    def _chunk(self) -> int:
        """Bytes of one chunk of the loss's logits."""
        return 4 * CHUNK_COPIES * max(CHUNK_LOGITS[self.device], CHUNK_ROWS * self.size.vocab)

    @property
    def _ends(self) -> int:
        return self._b * self.size.ends

    @property
    def _row_bytes(self) -> int:
        """Bytes of a row: bf16 states; 25 per slot for token, sequence, position and anchor."""
        # The drafter's inputs, and the teacher's state unless that is all the drafter reads.
        values = self.size.read + self.size.hidden * (self.size.read != self.size.hidden)
        return self.row_tokens * (2 * values + 25)

    def _always(self) -> dict[str, float]:
        """Bytes that exist in every phase."""
        gpu = self.device == "cuda"
        weights = self.num_trained_parameters if self.zero_stage < 3 else self._share
        # Stage 1 in bf16 (DeepSpeed's BF16_Optimizer) keeps the full gradient sum allocated.
        summed = self.num_trained_parameters if self.zero_stage == 1 and self._b == 2 else 0
        return {
            "weights": self._b
            * (weights + self.size.num_frozen_parameters(self.trained_parameters)),
            "master_weights": 4 * self._share,
            # Bf16 ends stay in the file on a CPU, which reads few of the embedding's rows.
            "embedding_and_head": self._ends // (1 if gpu or self._b == 4 else 2),
            "rows_in_flight": (1 if gpu else ROWS_IN_FLIGHT) * self._row_bytes,
            "summed_gradients": 4 * summed,
            "cuda_context_assumed": CUDA_CONTEXT * gpu,
            "libraries": LIBRARIES * (not gpu),
        }

    def _fit(self, always: dict[str, float]) -> dict[str, float]:
        """Bytes of a float32 head and ends, and a float64 ridge regression.

        The ends are the target's embedding and head. The regression holds products of the features
        (states and embedding) for fitted and held-out rows, and working copies for one solve.
        Master weights and gradient sums do not exist yet.
        """
        features = self.size.read + self.size.hidden
        squares = features**2
        crosses = features * self.size.hidden
        parts = ("embedding_and_head", "rows_in_flight", "cuda_context_assumed", "libraries")
        return {part: always[part] for part in parts} | {
            "weights": self._b * self.size.total * self.warm,
            "head_and_ends_float32": 4 * self.size.total + 3 * self.size.ends,
            # float64: Gram matrices of fitted and held-out rows, and two working copies for a
            # solve.
            "regression": 8 * (4 * squares + 5 * crosses),
        }

    def _start(self) -> dict[str, float]:
        """Bytes for replaying a validation row, including any float32 base.

        A depth without gradients takes half of what autograd would keep (measured: 0.35 to 0.5).
        """
        size = self.size
        width = 4 if self.warm else self._b
        states = width * self.depth * self.row[1] * size.drafter.width
        return {
            "base_speculator_float32": 4 * size.total * self.warm,
            "head_float32": 2 * size.ends * (self.warm and self._b == 2),
            "activations": 0.5 * self._kept(*self.row, 1) * width / self._b + states,
            "loss_chunk": self._chunk,
        }

    def _steps(self) -> dict[str, float]:
        """Bytes at backward's peak, either at its start or once gradients exist."""
        size = self.size
        b = self._b
        # `ChainUnroll` returns a copy of a trained head's weights.
        states = b * (
            3 * self.depth * self.row[1] * size.drafter.width + size.parts.get("lm_head", 0)
        )
        # Adam's two moments in float32, 4 bytes each.
        always = {"adam_moments": 8 * self._share, "drafted_states": states}
        newest: float = b * size.largest if self.trained_parameters == "all" else 0
        gradients: float = b * self.num_trained_parameters
        if self.zero_stage > 1 or b == 4:
            gradients += 4 * (self._share if self.zero_stage > 1 else self.num_trained_parameters)
        if self.zero_stage > 1:
            # A bucket, or a larger tensor, has a float32 copy while it is reduced.
            bucket = BUCKET if self.device == "cuda" else min(BUCKET, self.num_trained_parameters)
            newest = b * bucket + max(newest, 4 * max(bucket, min(size.largest, self._share)))
        # Attention's backward on a CPU: gradients of probabilities and of scores.
        scratch = 2 * size.activation_bytes(*self.row, 1).largest_scores * (self.device == "cpu")
        first = always | {"activations": self._held(self.depth) + max(scratch, self._chunk)}
        # The last depth's activations are freed when its gradients exist.
        later = always | {
            "activations": self._held(self.depth - 1) + max(scratch - newest, 0),
            "gradients": gradients + newest,
        }
        peak = max(first, later, key=lambda parts: sum(parts.values()))
        if self.zero_stage == 3:
            # Experts are gathered at each depth, and autograd's views keep each gathered copy.
            experts = (
                size.num_frozen_parameters("non_routed") if self.trained_parameters == "all" else 0
            )
            peak["gathered_weights"] = b * (
                self.depth * experts + self.num_trained_parameters - experts
            )
        return peak

    def _held(self, depth: int) -> float:
        """Activation bytes of `depth` depths; with recomputation, one depth's plus all inputs."""
        if not self.recompute:
            return self._kept(*self.row, depth) if depth else 0
        # A depth is recomputed from its state, input, queries, keys and values.
        inputs = self._b * self.size.drafter.input_values()
        # Gradients of keys and values are kept until depth 0. The parts of a depth are recomputed
        # in turn, so only about three quarters of its activations exist at once.
        tokens, anchors = self.row
        waiting = inputs * (depth * anchors + tokens)
        again = self.size.activation_bytes(*self.row, 1)
        return waiting + self._b / 2 * (0.75 * again.linear + again.scores * (self.device == "cpu"))

    def _kept(self, tokens: int, anchors: int, depth: int) -> float:
        """Bytes that autograd keeps without recomputation."""
        activations = self.size.activation_bytes(tokens, anchors, depth)
        scores = activations.scores if self.device == "cpu" else 0
        return self._b / 2 * (activations.linear + scores)


def peak_bytes(device: "torch.device") -> int:
    """Returns this process's peak memory so far, for comparison with `MemoryPlan`.

    Allocated memory on a GPU; resident memory on a CPU, from VmHWM because getrusage includes the
    parent's peak.
    """
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    [line] = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return 1024 * int(line.split()[1])
