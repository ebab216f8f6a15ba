"""Memory of one training process, by part and phase, computed before it exists.

    plan = MemoryPlan(size, RowShape.full(8192), row_tokens=8192, depth=3, zero_stage=1)
    needed = plan.phases()                # {"start": {part: bytes}, "backward": ..., "update": ...}
    plan.peak()                           # ("backward", bytes)

Three moments can be the largest: the start, when the base speculator in float32 exists next to the
prepared one (step-0 parity); backward; and the update of the weights. What DeepSpeed 0.19
(stage_1_and_2.py, stage3.py) holds in each comes from its code:

- every depth of the unroll uses every weight, and autograd adds up the depths' gradients before it
  hands one over: full gradients of all trained weights exist at once in every stage, plus the
  largest tensor's newest share; ZeRO-2 and 3 shard what comes after;
- the sum over rows and processes is in float32. In bf16, stage 1 (DeepSpeed's BF16_Optimizer) keeps
  it whole, from the start to the end; stages 2 and 3 keep their part of it. Stage 1 in float32
  keeps the sum so far where a step has several rows;
- in stages 2 and 3 a bucket of gradients has a float32 copy while it is reduced. A tensor larger
  than a bucket is reduced by itself, a process's part of it at a time;
- stage 3 gathers the experts' weights at each depth, and autograd's views of single experts keep
  each gathering until backward.

Bytes of a trained weight: b (2 in bf16, else 4) of weights, 4 of master weights, 8 of AdamW's
moments. Loading is never the largest: there, DeepSpeed's flat weights exist next to the loaded
ones, 2 b, but neither masters nor moments, which AdamW creates in the first update. What depends on
the kind of drafter comes from its `DrafterSize`. No torch, no weights, no GPU.
"""

import dataclasses
from typing import Literal

from outrider.speculators.kinds.protocol import (
    Activations,
    Device,
    DrafterSize,
    RowShape,
    TrainedParameters,
)

CHUNK_LOGITS = {"cpu": 2**21, "cuda": 2**26}
"""Logits that the loss holds at once (`training.losses.CHUNK_ELEMENTS`)."""

CHUNK_ROWS = 256
"""Least rows of a chunk of the loss."""

CHUNK_COPIES = 5
"""[chunk, vocabulary] tensors in float32 at the loss's widest moment."""

BUCKET = 100_000_000
"""Gradients that DeepSpeed reduces together. 200 MB and their float32 copy keep NVLink busy; its
default is five times as many."""

SUB_GROUP = 1_000_000_000
"""Weights that ZeRO-3 updates together, its default."""

ROWS_IN_FLIGHT = 4
"""In host memory: one computed, two waiting, one being assembled (training/batches.py)."""

KEPT_AT_MOST = 4_000_000_000
"""Where a full row keeps more for backward, every depth is computed again there, a third more
products of the layer. R1's keeps 22 GB of 8,192 tokens and 90 GB of 32,768; computed again, 4 and
15 GB, and 7 and 27 GB at a time."""

CUDA_CONTEXT = 1_500_000_000
"""Assumed, not measured: CUDA's context, NCCL's buffers, cuBLAS's workspace."""

LIBRARIES = 320_000_000
"""A CPU process before any data: Python, torch, DeepSpeed, by benchmarks/memory.py."""

VALUE_BYTES = {"bf16": 2, "fp32": 4}


@dataclasses.dataclass(frozen=True)
class MemoryPlan:
    """The settings that decide the memory of a training process."""

    size: DrafterSize
    row: RowShape
    """The largest row."""
    row_tokens: int
    depth: int
    zero_stage: int = 1
    processes: int = 1
    """Over all nodes."""
    rows_each: int = 1
    """Rows that a process computes for one optimizer step."""
    compute: Literal["bf16", "fp32"] = "bf16"
    trained_parameters: TrainedParameters = "all"
    lora_rank: int = 0
    frozen_value_bytes: float = 2.0
    """Bytes of a frozen weight, in the target's own precision: 1 in FP8."""
    device: Device = "cuda"
    warm: bool = True
    """Whether training starts from a base, which step-0 parity computes in float32."""
    looked_up: int | None = None
    """Different tokens of the traffic; None: all. On a CPU the embedding stays in the mapped
    checkpoint, of which only their rows are read."""

    @property
    def trained(self) -> int:
        """Parameters with gradients."""
        return self.size.trained(self.trained_parameters, self.lora_rank)

    def peak(self) -> tuple[str, int]:
        """The phase that needs most memory, and its bytes."""
        totals = {phase: sum(parts.values()) for phase, parts in self.phases().items()}
        phase = max(totals, key=totals.__getitem__)
        return phase, totals[phase]

    def phases(self) -> dict[str, dict[str, int]]:
        """Bytes by part in each phase; the parts of a phase exist at once."""
        kept = self._kept()
        states = {"adam_moments": self._share(8)}
        phases = {
            "start": kept | self._start(),
            "backward": kept | states | self._backward(),
            "update": kept | states | self._update(),
        }
        return {
            phase: {part: int(value) for part, value in parts.items() if value}
            for phase, parts in phases.items()
        }

    def checkpoint_bytes(self) -> int:
        """Disk of a training checkpoint: weights, float32 masters and moments of what is trained.

        Frozen experts are in no checkpoint. In float32 the weights are written besides the masters.
        """
        return (self._b + 12) * self.trained

    def host_bytes(self, processes: int) -> int:
        """Host memory of a node with this many processes.

        On a CPU that is all memory. With GPUs it is embedding and head on their way there, rows
        and libraries of each process, and a checkpoint: each process copies its part before it
        writes it, and the first one the weights.
        """
        if self.device == "cpu":
            return self.peak()[1] * processes
        each = self._ends() + ROWS_IN_FLIGHT * self._row_bytes() + LIBRARIES
        return processes * (each + self._share(12)) + self._b * self.trained

    @property
    def recompute(self) -> bool:
        """Whether backward computes every depth again, which the largest possible row decides."""
        full = self._kept_of(RowShape.full(self.row_tokens))
        return full.recomputed() is not None and full.saved_bytes() > KEPT_AT_MOST

    @property
    def activations(self) -> Activations:
        """What autograd keeps."""
        kept = self._kept_of(self.row)
        return (kept.recomputed() if self.recompute else None) or kept

    def _kept_of(self, row: RowShape) -> Activations:
        trained, rank = self.trained_parameters, self.lora_rank
        return self.size.activations(row, self.depth, self._b, self.device, trained, rank)

    @property
    def _b(self) -> int:
        return VALUE_BYTES[self.compute]

    def _share(self, value_bytes: float) -> int:
        """Bytes of one value per trained weight, sharded over the processes."""
        return int(value_bytes * self.trained / self.processes)

    def _ends(self) -> int:
        unread = 0
        if self.device == "cpu" and self._b == 2 and self.looked_up is not None:
            unread = max(self.size.vocab - self.looked_up, 0) * self.size.hidden
        return self._b * (self.size.ends - unread)

    def _row_bytes(self) -> int:
        """States in bf16; token, sequence and position in 8 bytes each, the anchor's mark in 1."""
        return self.row_tokens * (2 * self.size.state_values + 25)

    def _largest(self) -> int:
        return self.size.largest_trained(self.trained_parameters)

    @property
    def _kept_sum(self) -> bool:
        """Whether the sum of gradients is a buffer that exists all the time."""
        return self.zero_stage == 1 and self.compute == "bf16"

    def _reserved(self) -> int:
        """Values of the bucket: a GPU reserves it whole, a CPU what is written."""
        return BUCKET if self.device == "cuda" else min(BUCKET, self.trained)

    def _bucket(self) -> int:
        """The bucket and, from bf16, a float32 copy of what is reduced at once."""
        reduced = max(self._reserved(), min(self._largest(), self._share(1)))
        return self._b * self._reserved() + (4 * reduced if self._b < 4 else 0)

    def _kept(self) -> dict[str, int]:
        frozen = int(self.size.frozen(self.trained_parameters) * self.frozen_value_bytes)
        whole = self._b * self.trained if self.zero_stage < 3 else self._share(self._b)
        rows = ROWS_IN_FLIGHT if self.device == "cpu" else 1
        kept = {
            "weights": whole + frozen,
            "master_weights": self._share(4),
            "embedding_and_head": self._ends(),
            "rows_in_flight": rows * self._row_bytes(),
        }
        if self._kept_sum:
            kept["summed_gradients"] = 4 * self.trained
        if self.zero_stage == 3:
            kept["gradient_shard_and_bucket"] = self._share(4) + self._bucket()
        if self.device == "cuda":
            kept["cuda_context_assumed"] = CUDA_CONTEXT
        else:
            kept["libraries"] = LIBRARIES
        return kept

    def _start(self) -> dict[str, int]:
        """Exact replay of a validation row without gradients, by the base in float32 if any.

        On a CPU the checkpoint that the base was read from is still mapped.
        """
        s, b = self.size, 4 if self.warm else self._b
        return {
            "base_speculator_float32": self._base() if self.warm else 0,
            "mapped_checkpoint": 2 * s.total if self.warm and self.device == "cpu" else 0,
            "head_float32": 2 * s.ends if self.warm and self._b < 4 else 0,
            "activations": b * s.replay_values(self.row, self.depth)
            + self.activations.attention_scratch(b),
            "loss_chunk": 4 * CHUNK_COPIES * self._chunk(),
        }

    def _base(self) -> int:
        """Experts stored in FP8 stay so (`load_to_replay`); the rest is in float32."""
        experts = self.size.frozen("non_routed")
        in_fp8 = self.frozen_value_bytes < 2
        of_experts = int(self.frozen_value_bytes * experts) if in_fp8 else 4 * experts
        return 4 * (self.size.total - experts) + of_experts

    def _backward(self) -> dict[str, int]:
        """The largest moment: before anything is freed, at the loss, after a depth, at the end."""
        b, s, row = self._b, self.size, self.row
        kept = self.activations
        saved, again = kept.saved_bytes(), kept.again_bytes()
        states = 3 * b * self.depth * row.anchors * s.hidden
        scratch = kept.backward_scratch()
        gradients, last = b * (self.trained - s.used_once), b * s.used_once
        summed = self._summed_before()
        reduced = 0
        if self.zero_stage == 2:
            # Depth 0 hands a gradient over when all depths have added to it.
            gradients += self._share(4) + b * self._reserved()
            reduced = self._bucket() - b * self._reserved()
        else:
            gradients += summed
        # A trained head's rows are handed over as a copy, and have a gradient of their own.
        own_head = b * s.own_head
        chunk = 4 * CHUNK_COPIES * self._chunk() + own_head
        states += own_head
        first = {"activations": saved + again + scratch, "drafted_states": states}
        at_loss = {"activations": saved, "drafted_states": states, "loss_chunk": chunk}
        first["gradients"] = at_loss["gradients"] = summed
        later = saved - kept.last_depth_bytes() + again
        # A gradient of weights is new when the temporary ones before it are gone.
        newest = max(b * s.largest_repeated(self.trained_parameters), reduced)
        between = {
            "activations": later + max(scratch - newest, 0) * (self.depth > 1),
            "drafted_states": states,
            "gradients": gradients + newest,
        }
        end = {
            "activations": 0,
            "drafted_states": states,
            "gradients": gradients + reduced + last,
        }
        found = max(first, at_loss, between, end, key=lambda parts: sum(parts.values()))
        if self.zero_stage == 3:
            gathered = s.gathered_values(self.trained_parameters, self.depth)
            found["gathered_weights"] = b * gathered
        return found

    def _summed_before(self) -> int:
        """Gradients of the rows before this one, where no kept buffer holds them."""
        if self.rows_each == 1 or self._kept_sum or self.zero_stage == 3:
            return 0
        return self._share(4) if self.zero_stage == 2 else self._b * self.trained

    def _update(self) -> dict[str, int]:
        """Norm and clipping in float64, one tensor at a time; AdamW in place."""
        own = self.trained / self.processes
        norm = 8 * min(self._largest(), own)
        if self._kept_sum:
            return {"gradients": int(norm)}
        if self.zero_stage == 3:
            flat = 0 if self._b == 4 else 4
            norm = 8 * min(self._largest() / self.processes, own)
            return {"gradients": int(max((self._b + flat) * min(SUB_GROUP, own), norm))}
        whole = self.zero_stage == 1
        reduce = 4 * (self.trained if whole else 0) + self._bucket() + 4 * own
        norm += 4 * (self.trained if whole else own)
        # Stage 1 in float32 flattens its part into another vector.
        cast = 8 * own if whole else 4 * own
        return {"gradients": int(max(reduce if self.device == "cuda" else 0, norm, cast))}

    def _chunk(self) -> int:
        """Logits of a chunk."""
        return max(CHUNK_LOGITS[self.device], CHUNK_ROWS * self.size.vocab)
