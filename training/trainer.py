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
import torch.nn.functional as F
from torch import Tensor

from outrider.speculators.checkpoint import load_mtp, load_target_ends, write_mtp
from outrider.speculators.errors import OutriderError
from outrider.speculators.files import publish, value_digest, write_json
from outrider.speculators.layout import read_layout
from outrider.training.batches import Batch, Prefetch, Store
from outrider.training.checkpoints import load_checkpoint, save_checkpoint
from outrider.training.losses import depth_weights, distillation_loss
from outrider.training.metrics import Metrics
from outrider.training.packing import Row, Sample, make_samples, padding_share, plan_epoch
from outrider.training.prepare import COMPUTE_DTYPE, ChainUnroll, make_accelerator, prepare_model, run_unroll
from outrider.training.schedule import learning_rate
from outrider.training.spec import Preempted, TrainingSpec
from outrider.training.trainable import export_line, exported_profile, load_trainable, trained_tensors
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
        self.samples, left_out = self._samples(spec.train, "train")
        validation_samples, _ = self._samples(spec.validation, "validation")
        self.left_out = left_out
        self.steps = [
            step
            for epoch in range(self.config.epochs)
            for step in plan_epoch(
                self.samples, self.config.row_tokens, self.config.rows_per_step, self.config.seed, epoch
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
        speculator = load_trainable(spec.target_dir, spec.speculator, dtype, self.device, self.config.seed)
        self.unroll = ChainUnroll(speculator, ends, self.depth)
        self.model, self.optimizer = prepare_model(self.accelerator, self.unroll)
        self.weight_K = depth_weights(self.depth, self.config.depth_decay).to(self.device)
        # What decides the weights: a checkpoint of another digest belongs to another run.
        self.digest = value_digest([spec.settings(), store.manifest])
        self.stop_requested = False

    def run(self) -> dict[str, Any]:
        """Trains to the end (or to the end of patience), publishes the best speculator and returns what happened."""
        signal.signal(signal.SIGTERM, self._request_stop)
        began = time.perf_counter()
        state = load_checkpoint(self.accelerator, self._checkpoints, self.digest)
        first_step = state["step"] if state else 0
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
            else:
                self._say(f"resumed at step {first_step} of {len(self.steps)}")
            self._train(state, first_step)
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
            "exported": exported,
        }
        if self.accelerator.is_main_process:
            with publish(self.spec.publish_dir) as temporary:
                shutil.copytree(self._best, temporary)
            write_json(self.spec.out_dir / "result.json", result)
        self.accelerator.wait_for_everyone()
        return result

    def _start(self) -> dict[str, Any]:
        """Step 0: the base speculator in float32, the same as prepared, and proof that they agree."""
        base_ends = load_target_ends(self.spec.target_dir).to(self.device)
        base_unroll = ChainUnroll(load_mtp(self.spec.target_dir, device=self.device), base_ends, self.depth)
        base = self.validation.profile(base_unroll, base_unroll)
        prepared = self._evaluate(0)
        check_parity(base, prepared, self.config.parity_tolerance)
        self._save_best()
        return {
            "digest": self.digest,
            "base": prepared,
            "best": prepared,
            "best_step": 0,
            "evaluated_at": 0,
            "without_gain": 0,
        }

    def _train(self, state: dict[str, Any], first_step: int) -> None:
        if self._patience_ended(state):
            return
        with Prefetch(self.store, self.samples, self._my_rows(first_step), self.config.row_tokens) as batches:
            supply = iter(batches)
            for step in range(first_step, len(self.steps)):
                self._step(step, supply, batches)
                done = step + 1
                last = done == len(self.steps)
                if last or done % self.config.evaluate_every == 0:
                    self._judge(state, done)
                stop = self._someone_was_told_to_stop()
                if stop or last or done % self.config.checkpoint_every == 0 or self._patience_ended(state):
                    save_checkpoint(self.accelerator, self._checkpoints, done, state)
                if stop and not last:
                    raise Preempted(
                        f"training was asked to stop; step {done} of {len(self.steps)} is saved, the same command goes on"
                    )
                if self._patience_ended(state):
                    self._say(f"no gain in {self.config.patience} evaluations: stopped at step {done}")
                    return

    def _step(self, step: int, supply: Iterator[Batch], batches: Prefetch) -> None:
        """One optimizer step over this process's rows of the step."""
        began, waited = time.perf_counter(), batches.waited
        rows = self.steps[step]
        config, world, rank = self.config, self.accelerator.num_processes, self.accelerator.process_index
        rate = learning_rate(step, len(self.steps), config.learning_rate, config.warmup_fraction)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        in_step = [self.samples[index] for row in rows for index in row]
        count_K = torch.tensor([sum(sample.targets(s) for sample in in_step) for s in range(self.depth)])
        share_K = self.weight_K / count_K.clamp_min(1).to(self.device)
        rows_each = config.rows_per_step // world
        sums = torch.zeros(1 + 2 * self.depth, device=self.device)
        for turn in range(rows_each):
            batch = next(supply).to(self.device)
            counted = turn * world + rank < len(rows)
            with self.accelerator.accumulate(self.model):
                loss, loss_sums = self._row_loss(batch, share_K if counted else torch.zeros_like(share_K))
                if not loss.isfinite():
                    names = ", ".join(self.samples[index].sequence_id for index in batch.row)
                    raise OutriderError(
                        f"training: the loss at step {step + 1} is {loss.item()}; the row holds the sequences {names}."
                        f" Lower training.learning_rate ({config.learning_rate}) or leave those sequences out; what"
                        f" {self._checkpoints} holds is from before it"
                    )
                # DeepSpeed divides by the micro-batches and averages over the processes; the loss is a sum already.
                self.accelerator.backward(loss * rows_each * world)
                self.optimizer.step()
                self.optimizer.zero_grad()
            sums += torch.cat([loss.detach()[None], loss_sums.kl_K.float(), loss_sums.greedy_acceptance_K.float()])
        sums = self.accelerator.reduce(sums, reduction="sum").cpu()
        kl_K, acceptance_K = (sums[1:].view(2, self.depth) / count_K.clamp_min(1)).tolist()
        seconds = time.perf_counter() - began
        tokens = sum(sample.length for sample in in_step)
        gradient_norm = self.accelerator.deepspeed_engine_wrapped.get_global_grad_norm()
        values = {
            "loss": sums[0].item(),
            "kl": kl_K,
            "expected_acceptance": acceptance_K,
            "learning_rate": rate,
            "gradient_norm": gradient_norm,
            "tokens_per_s": tokens / seconds,
            "wait_share": (batches.waited - waited) / seconds,
            "padding_share": 1 - tokens / (config.rows_per_step * config.row_tokens),
        }
        self.metrics.write(step + 1, values)
        if (step + 1) % 10 == 0 or step == 0:
            self._say(
                f"step {step + 1}/{len(self.steps)}  loss {values['loss']:.4f}  expected acceptance"
                f" {' '.join(f'{rate:.3f}' for rate in acceptance_K)}  lr {rate:.1e}  {values['tokens_per_s']:.0f} tokens/s"
                f"  waiting {values['wait_share']:.0%}"
            )

    def _row_loss(self, batch: Batch, share_K: Tensor) -> tuple[Tensor, Any]:
        """The row's part of the step's loss. `share_K` is what one target of a depth weighs; 0 where the row does not count."""
        anchors_N = batch.anchor_BT[0].nonzero().squeeze(1)
        u_KNH, weight_KN = align_to_targets(run_unroll(self.model, batch), batch.sequence_BT[0, anchors_N])
        # Anchor i of depth 0 predicts the token at i + 2, whose distribution the target gives from its state at i + 1.
        teacher_NH = batch.hidden_BTH[0, anchors_N + 1].to(u_KNH.dtype)
        loss_K, sums = distillation_loss(
            u_KNH, teacher_NH, weight_KN * share_K[:, None], self.unroll.ends.lm_head_VH, self.config.loss
        )
        return loss_K.sum(), sums

    def _judge(self, state: dict[str, Any], done: int) -> None:
        """Evaluates, and keeps the speculator if its acceptance length with K drafts is the best so far."""
        profile = self._evaluate(done)
        state["evaluated_at"] = done
        if profile["acceptance_length"][-1] > state["best"]["acceptance_length"][-1]:
            state.update(best=profile, best_step=done, without_gain=0)
            self._save_best()
        else:
            state["without_gain"] += 1

    def _evaluate(self, done: int) -> dict[str, Any]:
        began = time.perf_counter()
        self.model.eval()
        profile = self.validation.profile(self.model, self.unroll)
        self.model.train()
        seconds = time.perf_counter() - began
        self.metrics.write(done, {f"validation_{name}": value for name, value in profile.items()})
        self._say(
            f"step {done}/{len(self.steps)}  validation: acceptance {' '.join(f'{a:.3f}' for a in profile['acceptance'])}"
            f"  acceptance length {profile['acceptance_length'][-1]:.3f} at K={self.depth}"
            f"  ({profile['sequences']} sequences, {seconds:.1f} s)"
        )
        return profile

    def _save_best(self) -> None:
        weights = self.accelerator.get_state_dict(self.model)
        if self.accelerator.is_main_process:
            write_mtp(trained_tensors(self.unroll.speculator, weights), self.spec.target_dir, self._best)
        self.accelerator.wait_for_everyone()

    def _exported(self, state: dict[str, Any]) -> dict[str, Any]:
        """What the best speculator accepts as it was written, in the target's own precision."""
        profile = exported_profile(self.validation, self._best, self.unroll.ends, self.depth)
        self.metrics.write(state["evaluated_at"], {f"exported_{name}": value for name, value in profile.items()})
        self._say(export_line(state["base"], state["best"], profile, read_layout(self.spec.target_dir).blocks))
        return profile

    def _samples(self, sequence_ids: list[str], part: str) -> tuple[list[Sample], dict[str, str]]:
        table = {row["id"]: row for row in self.store.manifest["sequences"]}
        missing = [sequence_id for sequence_id in sequence_ids if sequence_id not in table]
        if missing:
            raise OutriderError(
                f"{self.spec.features_dir}: no states for {len(missing)} sequences of the {part} part, {missing[0]} the first;"
                " run the capture stage again"
            )
        rows = [table[sequence_id] for sequence_id in sequence_ids]
        samples, left_out = make_samples(
            ((row["id"], row["length"], row["completion_start"]) for row in rows), self.config.row_tokens
        )
        if not samples:
            reason = next(iter(left_out.values()))
            raise OutriderError(f"training: every sequence of the {part} part was left out, the first because {reason}")
        return samples, left_out

    def _my_rows(self, first_step: int) -> Iterator[Row]:
        """This process's rows of all steps to come. In a short step its first row stands in, and is not counted."""
        world, rank = self.accelerator.num_processes, self.accelerator.process_index
        for rows in self.steps[first_step:]:
            for turn in range(self.config.rows_per_step // world):
                place = turn * world + rank
                yield rows[place] if place < len(rows) else rows[0]

    def _someone_was_told_to_stop(self) -> bool:
        told = torch.tensor([float(self.stop_requested)], device=self.device)
        return bool(self.accelerator.reduce(told, reduction="sum").item())

    def _patience_ended(self, state: dict[str, Any]) -> bool:
        return self.config.patience is not None and state["without_gain"] >= self.config.patience

    def _request_stop(self, *_: object) -> None:
        self.stop_requested = True

    def _say(self, line: str) -> None:
        self.accelerator.print(line, flush=True)

    @property
    def _checkpoints(self) -> Path:
        return self.spec.out_dir / "checkpoints"

    @property
    def _best(self) -> Path:
        return self.spec.out_dir / "best"


def align_to_targets(u_KNH: Tensor, sequence_N: Tensor) -> tuple[Tensor, Tensor]:
    """Shifts depth s by s anchors, so that row n of every depth predicts the token two after anchor n, and tells [K, N]
    where that row exists: its chain must have started in the same sequence. The anchors of a sequence are consecutive."""
    depth, anchors, _ = u_KNH.shape
    shifted, valid = [], []
    for s in range(depth):
        reach = min(s, anchors)
        shifted.append(F.pad(u_KNH[s, : anchors - reach], (0, 0, reach, 0)))
        valid.append(F.pad(sequence_N[reach:] == sequence_N[: anchors - reach], (reach, 0)))
    return torch.stack(shifted), torch.stack(valid)
