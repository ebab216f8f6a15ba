"""Memory of one training process, by part and phase, computed before it exists.

    plan = MemoryPlan(size, RowShape.full(8192), row_tokens=8192, depth=3, zero_stage=2)
    needed = plan.phases()                # {"start": {part: bytes}, "steps": {part: bytes}}
    plan.peak()                           # ("steps", bytes)

Two phases can be the largest: the start, when the base speculator in float32 exists next to the
prepared one (step-0 parity), and backward of a step. Weights, masters, AdamW's moments and the sum
of gradients over rows take what DeepSpeed estimates: 2 P + 18 P / n bytes for ZeRO-2 in bf16
(`estimate_zero2_model_states_mem_needs`). But every depth of the unroll uses every weight, so
autograd holds whole gradients until depth 0 hands them over: 2 P instead of 2 P / n, and the newest
depth's gradient of the largest tensor. Embedding, head, rows and activations (`DrafterSize`) come
on top.

The update needs less than backward: its temporary values are those of single tensors or of a
process's share. Loading needs less too: DeepSpeed's flat weights exist next to the loaded ones, but
neither masters nor moments. No weights, no GPU.
"""

import dataclasses
from typing import Literal

from outrider.speculators.size import Device, DrafterSize, RowShape, TrainedParameters

CHUNK_LOGITS = {"cpu": 2**21, "cuda": 2**26}
"""Logits that the loss holds at once (`training.losses.CHUNK_ELEMENTS`)."""

CHUNK_ROWS = 256
"""Least rows of a chunk of the loss."""

CHUNK_COPIES = 5
"""[chunk, vocabulary] tensors in float32 at the loss's widest moment."""

BUCKET = 100_000_000
"""Gradients that DeepSpeed reduces together. 200 MB and their float32 copy keep NVLink busy; its
default is five times as many."""

ROWS_IN_FLIGHT = 4
"""In host memory: one computed, two waiting, one being assembled (training/batches.py)."""

KEPT_AT_MOST = 4_000_000_000
"""Where a full row keeps more for backward, every depth is computed again there, a third more
products of the layer. R1's keeps 22 GB of 8,192 tokens and 86 GB of 32,768; computed again, 4 and
16 GB, and 6 and 25 GB at a time."""

CUDA_CONTEXT = 1_500_000_000
"""Assumed, not measured: CUDA's context, NCCL's buffers, cuBLAS's workspace."""

LIBRARIES = 320_000_000
"""A CPU process before any data: Python, torch, DeepSpeed; measured on nano R1."""


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
        phases = {"start": self._kept() | self._start(), "steps": self._kept() | self._steps()}
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
        each = self._ends() + ROWS_IN_FLIGHT * self._row_bytes() + LIBRARIES + 12 * self._share
        return int(processes * each + self._b * self.trained)

    @property
    def recompute(self) -> bool:
        """Whether backward computes every depth again, which the largest possible row decides."""
        return self.size.recomputes and self._saved(RowShape.full(self.row_tokens)) > KEPT_AT_MOST

    @property
    def _b(self) -> int:
        return 2 if self.compute == "bf16" else 4

    @property
    def _share(self) -> float:
        """Trained weights of one process."""
        return self.trained / self.processes

    @property
    def _chunk(self) -> int:
        """Bytes of the loss's chunk of logits."""
        return 4 * CHUNK_COPIES * max(CHUNK_LOGITS[self.device], CHUNK_ROWS * self.size.vocab)

    def _ends(self) -> int:
        unread = 0
        if self.device == "cpu" and self._b == 2 and self.looked_up is not None:
            unread = max(self.size.vocab - self.looked_up, 0) * self.size.hidden
        return self._b * (self.size.ends - unread)

    def _row_bytes(self) -> int:
        """States in bf16; token, sequence and position in 8 bytes each, the anchor's mark in 1."""
        return self.row_tokens * (2 * self.size.state_values + 25)

    def _kept(self) -> dict[str, float]:
        """What exists all the time."""
        gpu = self.device == "cuda"
        weights = self._b * (self.trained if self.zero_stage < 3 else self._share)
        frozen = self.frozen_value_bytes * self.size.frozen(self.trained_parameters)
        # Stage 1 in bf16 (DeepSpeed's BF16_Optimizer) has the whole sum from the start to the end.
        summed = self.trained if self.zero_stage == 1 and self._b == 2 else 0
        return {
            "weights": weights + frozen,
            "master_weights": 4 * self._share,
            "embedding_and_head": self._ends(),
            "rows_in_flight": (1 if gpu else ROWS_IN_FLIGHT) * self._row_bytes(),
            "summed_gradients": 4 * summed,
            "cuda_context_assumed": CUDA_CONTEXT * gpu,
            "libraries": LIBRARIES * (not gpu),
        }

    def _start(self) -> dict[str, float]:
        """Exact replay of a validation row without gradients, by the base in float32 if any.

        Experts stored in FP8 stay so (`load_to_replay`). On a CPU the checkpoint that the base was
        read from is still mapped.
        """
        s, row, b = self.size, self.row, 4 if self.warm else self._b
        experts = s.frozen("non_routed")
        of_experts = self.frozen_value_bytes if self.frozen_value_bytes < 2 else 4
        states = 2 * self.depth * row.anchors * s.hidden + 4 * row.tokens * s.hidden
        keys = (2 * s.key_values + s.value_values) * (row.tokens + (self.depth - 1) * row.anchors)
        return {
            "base_speculator_float32": self.warm * (4 * (s.total - experts) + of_experts * experts),
            "mapped_checkpoint": 2 * s.total * (self.warm and self.device == "cpu"),
            "head_float32": 2 * s.ends * (self.warm and self._b == 2),
            "activations": b * (states + keys + row.anchors * s.mlp) + self._attention_scratch(b),
            "loss_chunk": self._chunk,
        }

    def _steps(self) -> dict[str, float]:
        """Backward's two widest moments: before any gradient exists, and when all but one do."""
        s, b, row = self.size, self._b, self.row
        moments = 8 * self._share
        # A trained head's rows are handed over as a copy.
        states = 3 * b * self.depth * row.anchors * s.hidden + b * s.own_head
        newest: float = b * s.largest(self.trained_parameters)
        gradients: float = b * (self.trained - s.used_once)
        if self.zero_stage > 1 or b == 4:
            gradients += 4 * (self._share if self.zero_stage > 1 else self.trained)
        if self.zero_stage > 1:
            # A bucket, or a larger tensor, has a float32 copy while it is reduced.
            bucket = BUCKET if self.device == "cuda" else min(BUCKET, self.trained)
            reduced = max(bucket, min(s.largest(self.trained_parameters), self._share))
            newest = b * bucket + max(newest, 4 * reduced)
        saved, freed, again = self._activations()
        # Gradients of the experts' outputs, in the tokens' and in the experts' order.
        outputs = 2 * b * s.hidden * s.routed_to * row.anchors
        scratch = max(self._attention_scratch(b), outputs)
        first = {
            "adam_moments": moments,
            "activations": saved + max(again + scratch, self._chunk),
            "drafted_states": states,
        }
        later = {
            "adam_moments": moments,
            "activations": saved - freed + again + max(scratch - newest, 0) * (self.depth > 1),
            "drafted_states": states,
            "gradients": gradients + newest,
        }
        found = max(first, later, key=lambda parts: sum(parts.values()))
        if self.zero_stage == 3:
            # Experts are gathered at each depth, and autograd's views keep each gathering.
            experts = s.count(".experts.") if self.trained_parameters == "all" else 0
            found["gathered_weights"] = b * (self.depth * experts + self.trained - experts)
        return found

    def _saved(self, row: RowShape) -> int:
        """Bytes that autograd keeps of the unroll of a row where nothing is computed again."""
        deeper = (self.depth - 1) * row.anchors * self.size.deeper
        values = row.tokens * self.size.first + deeper
        return self._b * values + self.depth * self._layer(row)

    def _layer(self, row: RowShape) -> int:
        """The part of one depth that backward frees first: attention over the prefix, the MLP.

        On a CPU attention keeps scores, probabilities in float32 and bf16, and a mask; flex none.
        """
        pairs = 0 if self.device == "cuda" else row.pairs * (10 * self.size.heads + 1)
        return self._b * (row.anchors * self.size.finish + self.size.copied_weights) + pairs

    def _activations(self) -> tuple[int, int, int]:
        """Bytes kept of the row, the part of them freed first, and what is computed again."""
        s, row, b = self.size, self.row, self._b
        if not self.recompute:
            return self._saved(row), self._layer(row), 0
        # A depth's parts are computed again from its state, input, queries, keys and values.
        values = s.key_values + s.value_values
        depth = b * row.anchors * (2 * s.hidden + s.key_values + values)
        saved = self.depth * depth + b * (row.tokens - row.anchors) * values
        # Gradients of keys and values wait for depth 0.
        again = b * (row.tokens + row.anchors) * values
        return saved, depth, again + max(self._layer(row), b * row.tokens * s.first)

    def _attention_scratch(self, value_bytes: int) -> int:
        """Attention's backward on a CPU: gradients of probabilities and of scores."""
        if self.device == "cuda":
            return 0
        return (8 + value_bytes) * self.size.heads * self.row.largest_pairs
