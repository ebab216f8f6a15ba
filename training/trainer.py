"""The training loop: warm start, parity, steps, evaluations, checkpoints; the best speculator on the validation part wins.

    Trainer(spec, store).run()          # in every process; see worker.py for how one starts

The loss of a step is the mean over all its targets, in all rows of all processes, by depth and then weighted over depths:
so it does not matter how many processes share the rows.

Shapes: K depths, N anchors, H hidden.
"""

import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast

from outrider.common.errors import OutriderError
from outrider.common.files import publish, write_json
from outrider.common.fingerprint import value_digest
from outrider.speculators.checkpoints.layout import read_layout
from outrider.speculators.checkpoints.mtp_checkpoint import load_mtp, load_target_ends, write_mtp
from outrider.training.batches import Batch, Prefetch, Store
from outrider.training.checkpointing.checkpoints import load_checkpoint, save_checkpoint, states
from outrider.training.distributed.accelerator import (
    COMPUTE_DTYPE,
    ChainUnroll,
    make_accelerator,
    prepare_model,
    run_unroll,
)
from outrider.training.distributed.spec import Preempted, TrainingSpec
from outrider.training.metrics import Metrics
from outrider.training.objective import Objective
from outrider.training.packing import Row, padding_share, plan_epoch, samples_of_part
from outrider.training.reporting import step_line, step_values, validation_line
from outrider.training.rollback import BadBatch, Guard, Rollbacks
from outrider.training.schedule import learning_rate
from outrider.training.sizing.utilization import step_flops, utilization
from outrider.training.trainable import (
    export_line,
    exported_profile,
    load_trainable,
    trained_tensors,
)
from outrider.training.validation import Validation, check_parity


class Trainer:
    """One run of training in this process, with whatever other processes the launcher started."""

    def __init__(self, spec: TrainingSpec, store: Store):
        self.spec, self.store, self.config = spec, store, spec.training
        self.depth = spec.speculator.depth
        self.accelerator = make_accelerator(self.config, spec.log_dir)
        if self.config.rows_per_step % self.accelerator.num_processes:
            raise OutriderError(
                f"training.rows_per_step={self.config.rows_per_step} is not a multiple of the"
                f" {self.accelerator.num_processes} processes that were started"
            )
        self.device = self.accelerator.device
        row_tokens = self.config.row_tokens
        self.samples, self.left_out = samples_of_part(
            store.manifest, spec.train, row_tokens, "train", spec.features_dir
        )
        validation_samples, _ = samples_of_part(
            store.manifest, spec.validation, row_tokens, "validation", spec.features_dir
        )
        self.steps = [
            step
            for epoch in range(self.config.epochs)
            for step in plan_epoch(
                self.samples,
                self.config.row_tokens,
                self.config.rows_per_step,
                self.config.seed,
                epoch,
            )
        ]
        self.padding = padding_share(self.steps, self.samples, self.config.row_tokens)
        self.validation = Validation(
            self.accelerator,
            store,
            validation_samples,
            spec.sampling,
            self.config.row_tokens,
            spec.probabilistic_drafts,
        )
        dtype = COMPUTE_DTYPE[self.config.compute]
        ends = load_target_ends(spec.target_dir, dtype).to(self.device)
        speculator = load_trainable(
            spec.target_dir, spec.speculator, dtype, self.device, self.config.seed
        )
        self.unroll = ChainUnroll(speculator, ends, self.depth)
        self.model, self.optimizer = prepare_model(self.accelerator, self.unroll)
        self.objective = Objective(
            self.config,
            self.depth,
            ends.lm_head_VH,
            self.samples,
            spec.sampling,
            spec.probabilistic_drafts,
        )
        self.base = None
        if self.config.base_kl:
            base = load_mtp(spec.target_dir, dtype).requires_grad_(False)
            self.base = ChainUnroll(base, ends, self.depth).to(self.device)
        # What decides the weights: a checkpoint of another digest belongs to another run.
        self.digest = value_digest([spec.settings(), store.manifest])
        self.stop_requested = False

    def run(self) -> dict[str, Any]:
        """Trains to the end (or to the end of patience), publishes the best speculator and returns what happened."""
        signal.signal(signal.SIGTERM, self._request_stop)
        began = time.perf_counter()
        state = load_checkpoint(self.accelerator, self._checkpoints, self.digest)
        first_step = state["step"] if state else 0
        self.guard = Guard(self.config)
        self.rollbacks = Rollbacks(self.spec.out_dir / "rollbacks.json", self.digest, self.config)
        self.metrics = Metrics(
            self.accelerator,
            self.spec.log_dir,
            self.config.wandb_project,
            self.spec.model_dump(mode="json", include={"speculator", "training"}),
            first_step,
        )
        try:
            if state is None:
                state = self._start()
                self._save(0, state)
            else:
                self._say(f"resumed at step {first_step} of {len(self.steps)}")
            self.rollbacks.join(state)
            while (bad := self._train(state, first_step)) is not None:
                first_step = self._roll_back(state, bad)
            exported = self._exported(state)
        finally:
            self.metrics.close()
        result = {
            "steps": len(self.steps),
            "stopped_at": state["evaluated_at"],
            "seconds": round(time.perf_counter() - began, 1),
            "train_sequences": len(self.samples),
            "left_out": self.left_out,
            "padding_share": round(self.padding, 4),
            "base": state["base"],
            "best": state["best"],
            "best_step": state["best_step"],
            "rollbacks": self.rollbacks.list,
            "exported": exported,
        }
        if self.accelerator.is_main_process:
            with publish(self.spec.publish_dir) as temporary:
                shutil.copytree(self._best(state["best_step"]), temporary)
            write_json(self.spec.out_dir / "result.json", result)
        self.accelerator.wait_for_everyone()
        return result

    def _start(self) -> dict[str, Any]:
        """Step 0: the base speculator in float32, the same as prepared, and proof that they agree."""
        base_ends = load_target_ends(self.spec.target_dir).to(self.device)
        base_unroll = ChainUnroll(
            load_mtp(self.spec.target_dir, device=self.device), base_ends, self.depth
        )
        base = self.validation.profile(base_unroll, base_unroll)
        prepared = self._evaluate(0)
        check_parity(base, prepared, self.config.parity_tolerance)
        self._save_best(0)
        return {
            "digest": self.digest,
            "base": prepared,
            "best": prepared,
            "best_step": 0,
            "evaluated_at": 0,
            "without_gain": 0,
        }

    def _train(self, state: dict[str, Any], first_step: int) -> BadBatch | None:
        """Runs to the end or to a batch that has to be undone."""
        if self._patience_ended(state):
            return None
        with Prefetch(
            self.store, self.samples, self._my_rows(first_step), self.config.row_tokens
        ) as batches:
            supply = iter(batches)
            for step in range(first_step, len(self.steps)):
                if step not in self.rollbacks.steps:
                    try:
                        self._step(state, step, supply, batches)
                    except BadBatch as bad:
                        return bad
                done = step + 1
                last = done == len(self.steps)
                if last or done % self.config.evaluate_every == 0:
                    self._judge(state, done)
                stop = self._someone_was_told_to_stop()
                if (
                    stop
                    or last
                    or done % self.config.checkpoint_every == 0
                    or self._patience_ended(state)
                ):
                    self._save(done, state)
                if stop and not last:
                    raise Preempted(
                        f"training was asked to stop; step {done} of {len(self.steps)} is saved, the same command goes on"
                    )
                if self._patience_ended(state):
                    self._say(
                        f"no gain in {self.config.patience} evaluations: stopped at step {done}"
                    )
                    return None
        return None

    def _roll_back(self, state: dict[str, Any], bad: BadBatch) -> int:
        """Restores the last checkpoint, notes the batch to leave out, and returns the step to go on from."""
        restored = load_checkpoint(self.accelerator, self._checkpoints, self.digest)
        if restored is None:
            raise OutriderError(
                f"training: {bad}, and {self._checkpoints} holds no whole checkpoint to go back to"
            )
        self._say(self.rollbacks.add(bad, restored["step"], write=self.accelerator.is_main_process))
        self.rollbacks.join(restored)
        state.clear()
        state.update(restored)
        self.metrics.forget_after(restored["step"])
        return restored["step"]

    def _step(
        self, state: dict[str, Any], step: int, supply: Iterator[Batch], batches: Prefetch
    ) -> None:
        """One optimizer step over this process's rows of the step."""
        began, waited = time.perf_counter(), batches.waited
        rows = self.steps[step]
        config, world, rank = (
            self.config,
            self.accelerator.num_processes,
            self.accelerator.process_index,
        )
        rate = learning_rate(step, len(self.steps), config.learning_rate, config.warmup_fraction)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        in_step = [self.samples[index] for row in rows for index in row]
        share_K = self.objective.share(in_step).to(self.device)
        rows_each = config.rows_per_step // world
        sums = torch.zeros(1 + 2 * self.depth, device=self.device)
        for turn in range(rows_each):
            batch = next(supply).to(self.device)
            counted = turn * world + rank < len(rows)
            with self.accelerator.accumulate(self.model):
                u_KNH = run_unroll(self.model, batch)
                with torch.no_grad():
                    base_KNH = run_unroll(self.base, batch) if self.base else None
                counts_K = share_K if counted else torch.zeros_like(share_K)
                loss, loss_sums = self.objective.of_row(u_KNH, batch, counts_K, base_KNH)
                # DeepSpeed divides by the micro-batches and averages over the processes; the loss is a sum already.
                self.accelerator.backward(loss * rows_each * world)
                self.optimizer.step()
                self.optimizer.zero_grad()
            sums += torch.cat(
                [loss.detach()[None], loss_sums.kl_K.float(), loss_sums.acceptance_K.float()]
            )
        sums = self.accelerator.reduce(sums, reduction="sum").cpu()
        gradient_norm = self._from_first(
            self.accelerator.deepspeed_engine_wrapped.get_global_grad_norm()
        )
        names = [sample.sequence_id for sample in in_step]
        self.guard.check(state, step, self._from_first(sums[0].item()), gradient_norm, names)
        seconds = time.perf_counter() - began
        lengths, anchors = (
            [sample.length for sample in in_step],
            [sample.targets(0) for sample in in_step],
        )
        values = step_values(
            sums,
            self.objective.targets(in_step),
            rate,
            gradient_norm,
            sum(lengths),
            config.rows_per_step * config.row_tokens,
            seconds,
            batches.waited - waited,
        )
        flops = step_flops(self.unroll.speculator.arch, self.depth, lengths, anchors)
        mfu = utilization(flops, seconds, self.device, config.compute, world)
        if mfu is not None:
            values["mfu"] = mfu
        self.metrics.write(step + 1, values)
        if (step + 1) % 10 == 0 or step == 0:
            self._say(step_line(step + 1, len(self.steps), values))

    def _judge(self, state: dict[str, Any], done: int) -> None:
        """Evaluates, and keeps the speculator if its acceptance length with K drafts is the best so far."""
        profile = self._evaluate(done)
        state["evaluated_at"] = done
        if profile["acceptance_length"][-1] > state["best"]["acceptance_length"][-1]:
            state.update(best=profile, best_step=done, without_gain=0)
            self._save_best(done)
        else:
            state["without_gain"] += 1

    def _evaluate(self, done: int) -> dict[str, Any]:
        began = time.perf_counter()
        self.model.eval()
        profile = self.validation.profile(self.model, self.unroll)
        self.model.train()
        seconds = time.perf_counter() - began
        self.metrics.write(done, {f"validation_{name}": value for name, value in profile.items()})
        self._say(validation_line(done, len(self.steps), profile, seconds))
        return profile

    def _save(self, done: int, state: dict[str, Any]) -> None:
        """A checkpoint, and of the best speculators those that a checkpoint refers to."""
        save_checkpoint(
            self.accelerator, self._checkpoints, done, state, self.config.keep_checkpoints
        )
        if self.accelerator.is_main_process:
            wanted = {self._best(each["best_step"]) for each in states(self._checkpoints)}
            for path in set(self._best(0).parent.glob("step-*")) - wanted:
                shutil.rmtree(path)

    def _save_best(self, done: int) -> None:
        weights = self.accelerator.get_state_dict(self.model)
        if self.accelerator.is_main_process:
            write_mtp(
                trained_tensors(self.unroll.speculator, weights),
                self.spec.target_dir,
                self._best(done),
            )
        self.accelerator.wait_for_everyone()

    def _exported(self, state: dict[str, Any]) -> dict[str, Any]:
        """What the best speculator accepts as it was written, in the target's own precision."""
        best = self._best(state["best_step"])
        profile = exported_profile(self.validation, best, self.unroll.ends, self.depth)
        self.metrics.write(
            state["evaluated_at"], {f"exported_{name}": value for name, value in profile.items()}
        )
        self._say(
            export_line(
                state["base"], state["best"], profile, read_layout(self.spec.target_dir).blocks
            )
        )
        return profile

    def _my_rows(self, first_step: int) -> Iterator[Row]:
        """This process's rows of all steps to come. In a short step its first row stands in, and is not counted."""
        world, rank, left_out = (
            self.accelerator.num_processes,
            self.accelerator.process_index,
            self.rollbacks.steps,
        )
        for rows in (
            self.steps[step] for step in range(first_step, len(self.steps)) if step not in left_out
        ):
            for turn in range(self.config.rows_per_step // world):
                place = turn * world + rank
                yield rows[place] if place < len(rows) else rows[0]

    def _someone_was_told_to_stop(self) -> bool:
        stop = self.stop_requested or (
            self.accelerator.is_main_process and self.spec.stop_file.exists()
        )
        told = torch.tensor([float(stop)], device=self.device)
        return bool(self.accelerator.reduce(told, reduction="sum").item())

    def _from_first(self, value: Any) -> float:
        """The first process's value in every process: what is decided by it is decided alike, whatever the last bit."""
        return broadcast(torch.tensor([float(value)], device=self.device)).item()

    def _patience_ended(self, state: dict[str, Any]) -> bool:
        return self.config.patience is not None and state["without_gain"] >= self.config.patience

    def _request_stop(self, *_: object) -> None:
        self.stop_requested = True

    def _say(self, line: str) -> None:
        self.accelerator.print(line, flush=True)

    @property
    def _checkpoints(self) -> Path:
        return self.spec.out_dir / "checkpoints"

    def _best(self, done: int) -> Path:
        return self.spec.out_dir / "best" / f"step-{done:07d}"
