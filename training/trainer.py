"""The training loop: parity, steps, evaluations, checkpoints.

    train_rank(spec, source)         # in every process that worker.py starts

A run starts in three steps, each of which needs only the results of those before: the plan
(plan.py), the first weights (start.py), and the loop of this file.

The speculator with the largest acceptance length on the validation part is published. For each
depth, the loss of a step is averaged over all targets in the rows of all processes, and then
weighted by depth, so it does not depend on the number of processes.

Shapes: K depths.
"""

import contextlib
import dataclasses
import math
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor

from outrider.common.errors import OutriderError
from outrider.common.files import publish, write_json
from outrider.data.features.feature_store import FeatureStore
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.draft_vocabulary import coverage
from outrider.speculators.kinds.drafter import Batch
from outrider.speculators.parity import ParityConfig, parity_failure
from outrider.speculators.size import drafter_size
from outrider.training.batches import Prefetch, States
from outrider.training.checkpoints import (
    TrainerState,
    load_checkpoint,
    on_all_ranks,
    remove_after,
    save_checkpoint,
    saved_states,
)
from outrider.training.config import DEPTH_DECAY, SCRATCH_DECAY
from outrider.training.distributed.accelerator import ChainUnroll, make_accelerator, prepare_model
from outrider.training.distributed.spec import Preempted, TrainingSpec
from outrider.training.grammars import masks_of
from outrider.training.memory import MemoryPlan, peak_bytes
from outrider.training.metrics import (
    Metrics,
    export_line,
    step_line,
    step_values,
    utilization,
    validation_line,
    vocabulary_line,
)
from outrider.training.objective import Objective
from outrider.training.packing import Row, TrainingSample, rows_of_process, rows_per_process
from outrider.training.plan import TrainingPlan
from outrider.training.results import DraftVocabulary, Profile, TrainingResult
from outrider.training.start import Start, choose_start
from outrider.training.start_over import rate_share, rewind_state, starts_over
from outrider.training.step0_parity import StepZero
from outrider.training.validation import Validation

if TYPE_CHECKING:
    from outrider.data.streamed import StreamedFeatures, StreamReading


def train_rank(spec: TrainingSpec, source: "FeatureStore | StreamedFeatures") -> TrainingResult:
    """Runs this process's part of a training run."""
    plan = TrainingPlan.of(spec, source)
    accelerator = make_accelerator(plan.settings, spec.log_dir)
    validation = Validation(plan, accelerator)
    start = choose_start(plan, accelerator, validation)
    return Trainer(plan, accelerator, validation, start).run()


class Trainer:
    """The training loop of one process."""

    def __init__(
        self, plan: TrainingPlan, accelerator: Accelerator, validation: Validation, start: Start
    ):
        self.plan = plan
        self.accelerator = accelerator
        self.validation = validation
        self.start = start
        self.settings = start.settings
        self.device = accelerator.device
        self.size = drafter_size(plan.kind, plan.config, plan.target_config)
        start.drafter.recompute = MemoryPlan(
            self.size,
            self.settings.row_tokens,
            plan.depth,
            compute=self.settings.compute,
            trained_parameters=plan.spec.speculator.train,
            lora_rank=plan.spec.speculator.lora_rank,
            device="cuda" if self.device.type == "cuda" else "cpu",
        ).recompute
        self.unroll = ChainUnroll(start.drafter, start.ends, plan.depth)
        self.model, self.optimizer = prepare_model(accelerator, self.unroll)
        self.objective = Objective(
            config=self.settings,
            depth=plan.depth,
            lm_head_VH=start.ends.lm_head_VH,
            samples=plan.samples,
            sampling=plan.spec.sampling,
            probabilistic=plan.probabilistic,
            decay=SCRATCH_DECAY if plan.from_random_weights else DEPTH_DECAY,
        )
        self.metrics = Metrics(
            accelerator=accelerator,
            log_dir=plan.spec.log_dir,
            project=self.settings.used_project,
            config=plan.spec.model_dump(mode="json", include={"speculator", "training"}),
            resumed_step=self._first_step,
        )
        self.stop_requested = False

    def run(self) -> TrainingResult:
        """Trains to completion and publishes the best speculator."""
        # Not an Event, since a second signal during `Event.set` would wait for its lock forever.
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stop_requested", True))
        began = time.perf_counter()
        vocabulary = self._draft_vocabulary()
        if vocabulary is not None:
            self._say(vocabulary_line(vocabulary))
        lost_ends = self.plan.lost_ends.describe()
        if lost_ends:
            self._say(lost_ends)
        try:
            state = self._train(self._first_state())
            exported = self._exported(state)
        finally:
            self.metrics.close()
        result: TrainingResult = {
            "steps": len(self.plan.steps),
            "stopped_at": state["evaluated_at"],
            "seconds": round(time.perf_counter() - began, 1),
            "train_sequences": len(self.plan.samples),
            "left_out": self.plan.left_out,
            "lost_ends": self.plan.lost_ends._asdict(),
            "base": state["base"],
            "best": state["best"],
            "best_step": state["best_step"],
            "peak_learning_rate": rate_share(state) * self.settings.learning_rate,
            "exported": exported,
            "start_peak_bytes": state["start_peak_bytes"],
            "peak_bytes": peak_bytes(self.device),
        }
        if vocabulary is not None:
            result["draft_vocabulary"] = vocabulary
        if self.accelerator.is_main_process:
            with publish(self.plan.spec.publish_dir) as temporary:
                shutil.copytree(self._best_dir(state["best_step"]), temporary)
            write_json(self.plan.spec.out_dir / "result.json", result)
        self.accelerator.wait_for_everyone()
        return result

    @property
    def _first_step(self) -> int:
        return 0 if self.start.saved is None else self.start.saved["step"]

    def _draft_vocabulary(self) -> DraftVocabulary | None:
        """Returns the draft vocabulary's size and coverage, if there is one."""
        ids_D = self.unroll.speculator.head(self.unroll.ends).target_ids_D
        if ids_D is None:
            return None
        parts = {"train": self.plan.samples, "validation": self.plan.validation_samples}
        covered = {
            part: coverage(self.plan.token_counts(samples), ids_D.cpu())
            for part, samples in parts.items()
        }
        return {"tokens": len(ids_D), "coverage": covered}

    def _first_state(self) -> TrainerState:
        """Loads the newest checkpoint, or writes one after the checks before the first step."""
        saved = self.start.saved
        if saved is not None:
            load_checkpoint(self.accelerator, self.plan.spec.checkpoints_dir, self._first_step)
            self._say(f"resumed at step {self._first_step} of {len(self.plan.steps)}")
            # A release before 0.3 wrote neither.
            return cast("TrainerState", {"started_over": 0, "latest": saved["base"], **saved})
        profile = self._checked_profile()
        self._save_best(0)
        state: TrainerState = {
            "digest": self.plan.digest,
            "refit": self.start.origin.refit,
            "base": profile,
            "best": profile,
            "best_step": 0,
            "started_over": 0,
            "latest": profile,
            "evaluated_at": 0,
            "start_peak_bytes": peak_bytes(self.device),
        }
        self._save(0, state)
        return state

    def _checked_profile(self) -> Profile:
        """Evaluates step 0 and, if training starts from a base, checks step-0 parity."""
        if not self.start.from_base:
            return self._evaluate(0)
        parity = ParityConfig()
        check = StepZero(self._base_in_float32(), parity)
        profile = self._evaluate(0, check)
        sums_K4 = self.accelerator.reduce(check.sums_K4.to(self.device), reduction="sum")
        why = parity_failure(sums_K4.tolist(), parity)
        if why is not None:
            message = (
                "step-0 parity: before any update, the speculator prepared for training drafts"
                f" differently from the base in float32: {why}; if training.compute is bf16,"
                " check whether fp32 agrees. To train anyway, set training.parity=warn"
            )
            if self.settings.parity == "strict":
                raise OutriderError(message)
            self._say(f"warning: {message}")
        return profile

    def _base_in_float32(self) -> ChainUnroll:
        # Shares the prepared embedding, as a second copy would take 1.9 GB for R1.
        ends = dataclasses.replace(
            load_target_ends(self.plan.spec.target_dir).to(self.device),
            embedding_VH=self.unroll.ends.embedding_VH,
        )
        # Trains all weights, so that none is kept in another dtype or has an adapter.
        origin = dataclasses.replace(self.start.origin, train="all")
        drafter = self.plan.kind.start(origin, torch.float32, self.device, self.settings.seed)
        return ChainUnroll(drafter, ends, self.plan.depth).eval()

    def _train(self, state: TrainerState) -> TrainerState:
        """Trains from the first step to the last; returns the state after it."""
        state = self._steps(self._first_step, state)
        while starts_over(state):
            state = self._start_over(state)
            state = self._steps(0, state)
        return state

    def _steps(self, first_step: int, state: TrainerState) -> TrainerState:
        """Runs the steps from `first_step` to the last, or to a fall below the start."""
        steps = self.plan.steps
        rows = rows_of_process(
            steps=steps,
            first_step=first_step,
            rows_per_step=self.settings.rows_per_step,
            rank=self.accelerator.process_index,
            world=self.accelerator.num_processes,
        )
        with contextlib.ExitStack() as stack:
            stream = self._stream_of(rows)
            store: States = self.plan.source if stream is None else stream
            batches = stack.enter_context(
                Prefetch(
                    store=store,
                    samples=self.plan.samples,
                    rows=rows,
                    row_tokens=self.settings.row_tokens,
                    spec=self.plan.features,
                    masks_of=masks_of(self.plan.spec, self.plan.target_config),
                )
            )
            if stream is not None:  # ends a blocked read in the thread of `batches`
                stack.callback(stream.close)
            supply = iter(batches)
            for step in range(first_step, len(steps)):
                # Not set by a scheduler, so that a resumed run needs only the state and the step.
                rate = rate_share(state) * self.settings.learning_rate_at(step, len(steps))
                self._step(step, rate=rate, batches=batches, supply=supply, stream=stream)
                done = step + 1
                last = done == len(steps)
                if last or done % self.settings.evaluate_every == 0:
                    state = self._judge(state, done)
                    if starts_over(state):
                        return state
                stop = self._some_process_stops()
                if stop or last or done % self.settings.checkpoint_every == 0:
                    self._save(done, state)
                if stop and not last:
                    raise Preempted(
                        f"training stopped on request; step {done} of {len(steps)} is saved;"
                        " rerun the command to resume, or evaluate the best speculator so far, of"
                        f" step {state['best_step']}: outrider eval RECIPE --speculator"
                        f" {self._best_dir(state['best_step'])}"
                    )
        return state

    def _start_over(self, state: TrainerState) -> TrainerState:
        """Restores the weights before the first step, for training at a lower rate."""
        again = rewind_state(state)
        lengths = (state[of]["acceptance_length"][-1] for of in ("base", "latest"))
        fell = "fell from {:.3f} to {:.3f}".format(*lengths)
        rate = rate_share(again) * self.settings.learning_rate
        self._say(
            f"acceptance length on validation {fell} by step {state['evaluated_at']}: training"
            f" starts over at a peak learning rate of {rate:.1e}"
        )
        checkpoints_dir = self.plan.spec.checkpoints_dir
        # A run that is killed before `_save` ends takes the same steps again, to the same end.
        on_all_ranks(self.accelerator, lambda: remove_after(checkpoints_dir, 0), main_only=True)
        load_checkpoint(self.accelerator, checkpoints_dir, 0)
        self.metrics.forget_after(0)
        self._save(0, again)
        return again

    def _stream_of(self, rows: Sequence[Row]) -> "StreamReading | None":
        """Starts the capture of this process's rows, if states are captured during training."""
        if not self.settings.streams:
            return None
        source = cast("StreamedFeatures", self.plan.source)
        return source.start_reading(
            [self.plan.samples[index].sequence_id for row in rows for index in row]
        )

    def _step(
        self,
        step: int,
        *,
        rate: float,
        batches: Prefetch,
        supply: Iterator[Batch],
        stream: "StreamReading | None",
    ) -> None:
        """Runs one optimizer step over this process's rows."""
        began = time.perf_counter()
        waited_before = batches.waited
        rows = self.plan.steps[step]
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        masked = self._masked(rows, stream)
        in_step = [self.plan.samples[index] for row in rows for index in row if index not in masked]
        sums = self._update(rows, in_step, masked, supply)
        gradient_norm = float(self.accelerator.deepspeed_engine_wrapped.get_global_grad_norm())
        self._require_finite(step, sums[0].item(), gradient_norm, in_step)
        self._report(
            step,
            in_step,
            sums=sums,
            rate=rate,
            gradient_norm=gradient_norm,
            seconds=time.perf_counter() - began,
            waited=batches.waited - waited_before,
        )

    def _report(
        self,
        step: int,
        in_step: Sequence[TrainingSample],
        *,
        sums: Tensor,
        rate: float,
        gradient_norm: float,
        seconds: float,
        waited: float,
    ) -> None:
        """Writes the metrics of a step, and prints a line for every tenth."""
        world = self.accelerator.num_processes
        values = step_values(
            sums=sums,
            count_K=self.objective.count_targets(in_step),
            learning_rate=rate,
            gradient_norm=gradient_norm,
            tokens=sum(sample.length for sample in in_step),
            slots=self._rows_each * world * self.settings.row_tokens,
            seconds=seconds,
            waited=waited,
        )
        anchors = sum(sample.targets(0) for sample in in_step)
        mfu = utilization(
            flops=self.size.step_flops(self.plan.depth, anchors),
            seconds=seconds,
            device=self.device,
            compute=self.settings.compute,
            processes=world,
        )
        if mfu is not None:
            values["mfu"] = mfu
        self.metrics.write(step + 1, values)
        if (step + 1) % 10 == 0 or step == 0:
            self._say(step_line(step + 1, len(self.plan.steps), values, seconds))

    def _update(
        self,
        rows: Sequence[Row],
        in_step: Sequence[TrainingSample],
        masked: frozenset[int],
        supply: Iterator[Batch],
    ) -> Tensor:
        """Updates the weights; returns sums over all processes' rows, [1 + 2K].

        They are the loss, then KL and expected acceptance by depth.
        """
        world = self.accelerator.num_processes
        share_K = self.objective.loss_weights(in_step).to(self.device)
        sums = torch.zeros(1 + 2 * self.plan.depth, device=self.device)
        for turn in range(self._rows_each):
            batch = next(supply).to(self.device)
            counted = turn * world + self.accelerator.process_index < len(rows)
            with self.accelerator.accumulate(self.model):
                drafted = self.unroll.unroll_batch(batch, self.model)
                # ZeRO-3 gathers weights collectively, so a process without a row computes one that
                # does not count.
                counts_K = share_K if counted else torch.zeros_like(share_K)
                loss, judged = self.objective.row_loss(drafted, batch, counts_K, masked)
                # DeepSpeed averages over micro-batches and processes, but the loss is a sum.
                self.accelerator.backward(loss * self._rows_each * world)
                self.optimizer.step()
                self.optimizer.zero_grad()
            kl_K = judged.kl_KN.sum(-1)
            acceptance_K = judged.acceptance_KN.sum(-1)
            sums += torch.cat([loss.detach()[None], kl_K.float(), acceptance_K.float()])
        reduced: Tensor = self.accelerator.reduce(sums, reduction="sum")
        return reduced.cpu()

    @property
    def _rows_each(self) -> int:
        """Number of rows that each process computes in a step."""
        return rows_per_process(self.settings.rows_per_step, self.accelerator.num_processes)

    def _require_finite(
        self, step: int, loss: float, gradient_norm: float, in_step: Sequence[TrainingSample]
    ) -> None:
        """Raises an `OutriderError` if a step's loss or gradient is not finite."""
        # DeepSpeed reports the norm of a gradient with NaN or infinity as -1.
        if math.isfinite(loss) and math.isfinite(gradient_norm) and gradient_norm >= 0:
            return
        names = ", ".join(sample.sequence_id for sample in in_step)
        raise OutriderError(
            f"training: step {step + 1} has loss {loss:g} and gradient norm"
            f" {gradient_norm:g} with sequences {names}; lower training.learning_rate, or"
            " remove the sequence whose states are not finite"
        )

    def _judge(self, state: TrainerState, done: int) -> TrainerState:
        """Evaluates; saves the speculator if its acceptance length is the best."""
        profile = self._evaluate(done)
        evaluated: TrainerState = {**state, "latest": profile, "evaluated_at": done}
        # At the trained depth K; a tie keeps the earlier one, which is closer to the base.
        if profile["acceptance_length"][-1] > state["best"]["acceptance_length"][-1]:
            self._save_best(done)
            return {**evaluated, "best": profile, "best_step": done}
        return evaluated

    def _evaluate(self, done: int, check: StepZero | None = None) -> Profile:
        began = time.perf_counter()
        self.model.eval()
        profile = self.validation.profile(self.unroll, self.model, check.add if check else None)
        self.model.train()
        seconds = time.perf_counter() - began
        self._say(validation_line(done, len(self.plan.steps), profile, seconds))
        self.metrics.write(done, {f"validation_{name}": value for name, value in profile.items()})
        return profile

    def _save(self, done: int, state: TrainerState) -> None:
        """Writes a checkpoint, and removes saved speculators that no checkpoint refers to."""
        checkpoints_dir = self.plan.spec.checkpoints_dir
        save_checkpoint(self.accelerator, checkpoints_dir, done, state)
        if self.accelerator.is_main_process:
            referred = {
                self._best_dir(saved["best_step"]) for saved in saved_states(checkpoints_dir)
            }
            for path in set(self._best_dir(0).parent.glob("step-*")) - referred:
                shutil.rmtree(path)

    def _save_best(self, done: int) -> None:
        # Below ZeRO-3, the module's own tensors are whole; accelerate would clone them in every
        # process: 23 GB per process for R1's layer.
        weights = self.unroll.state_dict()
        if self.settings.zero_stage == 3:
            weights = self.accelerator.get_state_dict(self.model)
        if self.accelerator.is_main_process:
            state = {name.removeprefix("speculator."): tensor for name, tensor in weights.items()}
            trained = self.plan.kind.trained_tensors(self.unroll.speculator, state)
            self.plan.kind.write(trained, self.start.origin, self._best_dir(done))
        self.accelerator.wait_for_everyone()

    def _exported(self, state: TrainerState) -> Profile:
        """Returns the validation acceptance of the best speculator as exported.

        This shows the cost of the stored precision: block FP8 rounds trained weights, and merged
        adapters are rounded to the experts' dtype.
        """
        written = self.plan.kind.load(
            self._best_dir(state["best_step"]),
            self.plan.spec.target_dir,
            self.unroll.ends.dtype,
            self.device,
        )
        unroll = ChainUnroll(written, self.unroll.ends, self.plan.depth).eval()
        profile = self.validation.profile(unroll)
        self.metrics.write(
            state["evaluated_at"], {f"exported_{name}": value for name, value in profile.items()}
        )
        self._say(export_line(state["base"], state["best"], profile))
        return profile

    def _masked(self, rows: Sequence[Row], stream: "StreamReading | None") -> frozenset[int]:
        """Returns the step's off-policy samples; each process checks its own rows."""
        if stream is None:
            return frozenset()
        rows_here = rows[self.accelerator.process_index :: self.accelerator.num_processes]
        # The check waits for the capture of its rows, so no process checks rows that it does not
        # compute.
        indices = [index for row in rows_here for index in row]
        is_off = stream.off_policy([self.plan.samples[index].sequence_id for index in indices])
        off_policy = [index for index, off in zip(indices, is_off, strict=True) if off]
        return frozenset(gather_object(off_policy))

    def _some_process_stops(self) -> bool:
        stop = self.stop_requested or (
            self.accelerator.is_main_process and self.plan.spec.stop_file.exists()
        )
        # All processes must leave the loop at the same step, or the others wait in a collective
        # forever.
        stops = torch.tensor([float(stop)], device=self.device)
        return bool(self.accelerator.reduce(stops, reduction="sum").item())

    def _say(self, line: str) -> None:
        self.accelerator.print(line, flush=True)

    def _best_dir(self, done: int) -> Path:
        return self.plan.spec.out_dir / "best" / f"step-{done:07d}"
