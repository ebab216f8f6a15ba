"""The training loop: warm start, parity, steps, evaluations, checkpoints.

    Trainer(spec, source).run()         # in every process that worker.py starts

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
from typing import Any, cast

import torch
from accelerate.utils import broadcast, gather_object

from outrider.common.errors import OutriderError
from outrider.common.files import publish, read_json, write_json
from outrider.common.fingerprint import value_digest
from outrider.speculators.base import base_of, planned, warm_start
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.draft_vocabulary import coverage, token_counts
from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds import trainable_kind
from outrider.speculators.kinds.drafter import Batch, Drafter
from outrider.speculators.kinds.protocol import Origin
from outrider.speculators.parity import ParityConfig, complaint
from outrider.speculators.size import drafter_size
from outrider.training.batches import Prefetch, Reading, Store, Stream, assemble
from outrider.training.checkpoints import load_checkpoint, newest_state, save_checkpoint, states
from outrider.training.config import DEPTH_DECAY, FITTED_RATE, SCRATCH_DECAY
from outrider.training.distributed.accelerator import (
    COMPUTE_DTYPE,
    ChainUnroll,
    make_accelerator,
    prepare_model,
)
from outrider.training.distributed.spec import Preempted, TrainingSpec
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
from outrider.training.packing import (
    Row,
    Sample,
    cut_at_rows,
    plan_epoch,
    rows_of_process,
    samples_of_part,
    turns,
)
from outrider.training.step0_parity import StepZero
from outrider.training.validation import Validation


class Trainer:
    """This process's part of a training run."""

    def __init__(self, spec: TrainingSpec, source: Store):
        self.spec = spec
        self.source = source
        self.config = spec.training
        self.depth = spec.speculator.depth
        self.kind = trainable_kind(spec.speculator.only_kind)
        target_config = read_json(spec.target_dir / "config.json")
        self.vocab = target_config["vocab_size"]
        config = planned(spec.speculator, target_config)
        fitted = not spec.training.streams and self.kind.fitted(config)
        self.origin = Origin(
            target_dir=spec.target_dir,
            # Only a base of the same kind gives a warm start.
            base_dir=warm_start(self.kind, base_of(spec.speculator.base, spec.target_dir)),
            head=spec.speculator.head,
            token_counts=lambda: self._token_counts(self.samples),
            rows=self._rows if fitted else None,
            train=spec.speculator.train,
            lora_rank=spec.speculator.lora_rank,
        )
        warm = self.origin.base_dir is not None
        self.config = spec.training.started(warm, fitted)
        self.features = self.kind.features(config, target_config)
        self.features.require(source.spec, spec.features_dir)
        self.accelerator = make_accelerator(self.config, spec.log_dir)
        self.device = self.accelerator.device
        # A checkpoint with a different digest belongs to another run.
        self.digest = value_digest([spec.settings(), source.manifest])
        self.saved = newest_state(self.accelerator, self._checkpoints, self.digest)
        row_tokens = self.config.row_tokens
        self.samples, self.left_out = samples_of_part(
            manifest=source.manifest,
            sequence_ids=spec.train,
            row_tokens=row_tokens,
            part="train",
            features_dir=spec.features_dir,
        )
        validation_samples, _ = samples_of_part(
            manifest=source.manifest,
            sequence_ids=spec.validation,
            row_tokens=row_tokens,
            part="validation",
            features_dir=spec.features_dir,
        )
        parts = {*spec.train, *spec.validation}
        rows = [row for row in source.manifest["sequences"] if row["id"] in parts]
        lengths, starts = ([row[key] for row in rows] for key in ("length", "completion_start"))
        self.lost_ends = cut_at_rows(lengths, starts, row_tokens)
        packed = self.samples, row_tokens, self.config.rows_per_step, self.config.seed
        epochs = (plan_epoch(*packed, number) for number in range(self.config.epochs))
        self.steps = [rows for steps in epochs for rows in steps]
        probabilistic = spec.speculator.draft_sample_method == "probabilistic"
        self.validation = Validation(
            accelerator=self.accelerator,
            store=source,
            samples=validation_samples,
            sampling=spec.sampling,
            row_tokens=row_tokens,
            spec=self.features,
            probabilistic=probabilistic,
        )
        dtype = COMPUTE_DTYPE[self.config.compute]
        ends = load_target_ends(spec.target_dir, dtype).to(self.device)
        speculator = self._initial(dtype)
        if warm and fitted:
            speculator = self._better(speculator, ends, dtype)
        self.size = drafter_size(self.kind, config, target_config)
        speculator.recompute = MemoryPlan(
            self.size,
            row_tokens,
            self.depth,
            compute=self.config.compute,
            trained_parameters=spec.speculator.train,
            lora_rank=spec.speculator.lora_rank,
            device="cuda" if self.device.type == "cuda" else "cpu",
        ).recompute
        self.unroll = ChainUnroll(speculator, ends, self.depth)
        self.model, self.optimizer = prepare_model(self.accelerator, self.unroll)
        self.objective = Objective(
            config=self.config,
            depth=self.depth,
            lm_head_VH=ends.lm_head_VH,
            samples=self.samples,
            sampling=spec.sampling,
            probabilistic=probabilistic,
            decay=DEPTH_DECAY if warm or fitted else SCRATCH_DECAY,
        )
        self.stop_requested = False

    def _rows(self) -> Iterator[Batch]:
        """Yields the training part, row by row, in the first epoch's order."""
        width = self.config.row_tokens
        for (row,) in plan_epoch(
            samples=self.samples, row_tokens=width, rows_per_step=1, seed=self.config.seed, epoch=0
        ):
            yield assemble(
                store=self.source,
                samples=self.samples,
                row=row,
                row_tokens=width,
                spec=self.features,
            ).to(self.device)

    def _initial(self, dtype: torch.dtype) -> Drafter:
        """Returns the origin's speculator, with identical weights in every process."""
        origin = self.origin
        # Only the first process fits to the rows; a checkpoint contains all trained weights.
        if self.saved or not self.accelerator.is_main_process:
            origin = dataclasses.replace(origin, rows=None)
        speculator = self.kind.start(origin, dtype, self.device, self.config.seed)
        if origin.base_dir is None or origin.refit:
            for parameter in speculator.parameters():
                broadcast(parameter.data)
            # On GPUs only the stream waits for a broadcast, and DeepSpeed's start has a timeout.
            self.accelerator.wait_for_everyone()
        return speculator

    def _better(self, base: Drafter, ends: TargetEnds, dtype: torch.dtype) -> Drafter:
        """Returns the base or a fit of its shape to the traffic, by validation acceptance.

        A base that knows little about the traffic drafts worse than a closed-form fit, and a head
        that starts from it needs more responses to become as good.
        """
        if self.saved and not self.saved["refit"]:
            return base
        given = self.origin
        self.origin = dataclasses.replace(self.origin, refit=True)
        fit = self._initial(dtype)
        if not self.saved:
            unrolls = [ChainUnroll(each, ends, self.depth).eval() for each in (base, fit)]
            of_base, of_fit = (
                self.validation.profile(each)["acceptance_length"][-1] for each in unrolls
            )
            better = "fit" if of_fit > of_base else "base"
            self._say(
                f"acceptance length on validation before training: base {of_base:.3f}, closed-form"
                f" fit {of_fit:.3f}; training starts from the {better}"
            )
            if better == "base":
                self.origin = given
                return base
        self.config = self.config.model_copy(
            update={"learning_rate": FITTED_RATE * self.config.learning_rate}
        )
        return fit

    def run(self) -> dict[str, Any]:
        """Trains to completion and publishes the best speculator."""
        # Not an Event, since a second signal during `Event.set` would wait for its lock forever.
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "stop_requested", True))
        began = time.perf_counter()
        state = self.saved
        first_step = state["step"] if state else 0
        if drafts := self._draft_vocabulary():
            self._say(vocabulary_line(drafts["draft_vocabulary"]))
        if cut := self.lost_ends.describe():
            self._say(cut)
        self.metrics = Metrics(
            accelerator=self.accelerator,
            log_dir=self.spec.log_dir,
            project=self.config.wandb_project,
            config=self.spec.model_dump(mode="json", include={"speculator", "training"}),
            resumed_step=first_step,
        )
        try:
            if state is None:
                state = self._start()
                self._save(0, state)
            else:
                load_checkpoint(self.accelerator, self._checkpoints, first_step)
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
            "lost_ends": self.lost_ends._asdict(),
            "base": state["base"],
            "best": state["best"],
            "best_step": state["best_step"],
            "exported": exported,
            "start_peak_bytes": state["start_peak_bytes"],
            "peak_bytes": peak_bytes(self.device),
            **self._draft_vocabulary(),
        }
        if self.accelerator.is_main_process:
            with publish(self.spec.publish_dir) as temporary:
                shutil.copytree(self._best(state["best_step"]), temporary)
            write_json(self.spec.out_dir / "result.json", result)
        self.accelerator.wait_for_everyone()
        return result

    def _draft_vocabulary(self) -> dict[str, Any]:
        """Returns the draft vocabulary's size and coverage, if there is one."""
        ids_D = self.unroll.speculator.head(self.unroll.ends).target_ids_D
        if ids_D is None:
            return {}
        parts = {"train": self.samples, "validation": self.validation.samples}
        covered = {
            part: coverage(self._token_counts(samples), ids_D.cpu())
            for part, samples in parts.items()
        }
        return {"draft_vocabulary": {"tokens": len(ids_D), "coverage": covered}}

    def _token_counts(self, samples: Sequence[Sample]) -> torch.Tensor:
        """Counts each token of the vocabulary in the samples' responses, [V]."""
        responses = (
            self.source.tokens(sample.sequence_id)[sample.first_anchor + 1 : sample.length]
            for sample in samples
        )
        return token_counts(responses, self.vocab)

    def _start(self) -> dict[str, Any]:
        """Evaluates step 0, checks step-0 parity, and returns the initial state."""
        parity = ParityConfig()
        check = None
        if self.origin.base_dir is not None and not self.origin.refit:
            # The base shares the prepared embedding, as a second copy would take 1.9 GB for R1.
            base_ends = dataclasses.replace(
                load_target_ends(self.spec.target_dir).to(self.device),
                embedding_VH=self.unroll.ends.embedding_VH,
            )
            # Trains all weights, so that none is kept in another dtype or has an adapter.
            plain = dataclasses.replace(self.origin, train="all")
            base_speculator = self.kind.start(plain, torch.float32, self.device, self.config.seed)
            check = StepZero(ChainUnroll(base_speculator, base_ends, self.depth).eval(), parity)
        prepared = self._evaluate(0, check)
        if check is not None:
            sums_K4 = self.accelerator.reduce(check.sums_K4.to(self.device), reduction="sum")
            if why := complaint(sums_K4.tolist(), parity):
                why = (
                    "step-0 parity: before any update, the speculator prepared for training drafts"
                    f" differently from the base in float32: {why}; if training.compute is bf16,"
                    " check whether fp32 agrees. To train anyway, set training.parity=warn"
                )
                if self.config.parity == "strict":
                    raise OutriderError(why)
                self._say(f"warning: {why}")
        self._save_best(0)
        return {
            "digest": self.digest,
            "refit": self.origin.refit,
            "base": prepared,
            "best": prepared,
            "best_step": 0,
            "evaluated_at": 0,
            "start_peak_bytes": peak_bytes(self.device),
        }

    def _train(self, state: dict[str, Any], first_step: int) -> None:
        """Trains from `first_step` to the last step."""
        rows = rows_of_process(
            steps=self.steps,
            first_step=first_step,
            rows_per_step=self.config.rows_per_step,
            rank=self.accelerator.process_index,
            world=self.accelerator.num_processes,
        )
        with contextlib.ExitStack() as stack:
            reading: Any = self.source
            if self.config.streams:
                names = [self.samples[index].sequence_id for row in rows for index in row]
                reading = cast(Stream, self.source).reading(names)
            shape = self.config.row_tokens, self.features
            batches = stack.enter_context(Prefetch(reading, self.samples, rows, *shape))
            if self.config.streams:  # ends a blocked read in the thread of `batches`
                stack.callback(reading.close)
            supply = iter(batches)
            for step in range(first_step, len(self.steps)):
                self._step(step, supply, batches, reading)
                done = step + 1
                last = done == len(self.steps)
                if last or done % self.config.evaluate_every == 0:
                    self._judge(state, done)
                stop = self._some_process_stops()
                if stop or last or done % self.config.checkpoint_every == 0:
                    self._save(done, state)
                if stop and not last:
                    raise Preempted(
                        f"training stopped on request; step {done} of {len(self.steps)} is saved;"
                        " rerun the command to resume"
                    )

    def _step(
        self, step: int, supply: Iterator[Batch], batches: Prefetch, reading: Reading
    ) -> None:
        """Runs one optimizer step over this process's rows."""
        began = time.perf_counter()
        waited = batches.waited
        rows = self.steps[step]
        config = self.config
        world = self.accelerator.num_processes
        rate = config.learning_rate_at(step, len(self.steps))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        masked = self._masked(rows, reading)
        in_step = [self.samples[index] for row in rows for index in row if index not in masked]
        share_K = self.objective.share(in_step).to(self.device)
        rows_each = turns(config.rows_per_step, world)
        sums = torch.zeros(1 + 2 * self.depth, device=self.device)
        for turn in range(rows_each):
            batch = next(supply).to(self.device)
            counted = turn * world + self.accelerator.process_index < len(rows)
            with self.accelerator.accumulate(self.model):
                drafted = self.unroll.drafted(batch, self.model)
                counts_K = share_K if counted else torch.zeros_like(share_K)
                loss, judged = self.objective.of_row(drafted, batch, counts_K, masked)
                # DeepSpeed averages over micro-batches and processes, but the loss is a sum.
                self.accelerator.backward(loss * rows_each * world)
                self.optimizer.step()
                self.optimizer.zero_grad()
            kl_K = judged.kl_KN.sum(-1)
            acceptance_K = judged.acceptance_KN.sum(-1)
            sums += torch.cat([loss.detach()[None], kl_K.float(), acceptance_K.float()])
        sums = self.accelerator.reduce(sums, reduction="sum").cpu()
        gradient_norm = float(self.accelerator.deepspeed_engine_wrapped.get_global_grad_norm())
        # DeepSpeed reports the norm of a gradient with NaN or infinity as -1.
        if not (math.isfinite(sums[0]) and math.isfinite(gradient_norm) and gradient_norm >= 0):
            names = ", ".join(sample.sequence_id for sample in in_step)
            raise OutriderError(
                f"training: step {step + 1} has loss {sums[0]:g} and gradient norm"
                f" {gradient_norm:g} with sequences {names}; lower training.learning_rate, or"
                " remove the sequence whose states are not finite"
            )
        seconds = time.perf_counter() - began
        values = step_values(
            sums=sums,
            count_K=self.objective.targets(in_step),
            learning_rate=rate,
            gradient_norm=gradient_norm,
            tokens=sum(sample.length for sample in in_step),
            slots=rows_each * world * config.row_tokens,
            seconds=seconds,
            waited=batches.waited - waited,
        )
        flops = self.size.step_flops(self.depth, sum(sample.targets(0) for sample in in_step))
        mfu = utilization(
            flops=flops,
            seconds=seconds,
            device=self.device,
            compute=config.compute,
            processes=world,
        )
        if mfu is not None:
            values["mfu"] = mfu
        self.metrics.write(step + 1, values)
        if (step + 1) % 10 == 0 or step == 0:
            self._say(step_line(step + 1, len(self.steps), values, seconds))

    def _judge(self, state: dict[str, Any], done: int) -> None:
        """Evaluates; saves the speculator if its acceptance length is the best."""
        profile = self._evaluate(done)
        state["evaluated_at"] = done
        if profile["acceptance_length"][-1] > state["best"]["acceptance_length"][-1]:
            state.update(best=profile, best_step=done)
            self._save_best(done)

    def _evaluate(self, done: int, check: StepZero | None = None) -> dict[str, Any]:
        began = time.perf_counter()
        self.model.eval()
        profile = self.validation.profile(self.unroll, self.model, check.add if check else None)
        self.model.train()
        self._say(validation_line(done, len(self.steps), profile, time.perf_counter() - began))
        self.metrics.write(done, {f"validation_{name}": value for name, value in profile.items()})
        return profile

    def _save(self, done: int, state: dict[str, Any]) -> None:
        """Writes a checkpoint, and removes saved speculators that no checkpoint refers to."""
        save_checkpoint(self.accelerator, self._checkpoints, done, state)
        if self.accelerator.is_main_process:
            wanted = {self._best(each["best_step"]) for each in states(self._checkpoints)}
            for path in set(self._best(0).parent.glob("step-*")) - wanted:
                shutil.rmtree(path)

    def _save_best(self, done: int) -> None:
        # Below ZeRO-3, the module's own tensors are whole; accelerate would clone them in every
        # process: 23 GB per process for R1's layer.
        weights = self.unroll.state_dict()
        if self.config.zero_stage == 3:
            weights = self.accelerator.get_state_dict(self.model)
        if self.accelerator.is_main_process:
            state = {name.removeprefix("speculator."): each for name, each in weights.items()}
            self.kind.write(
                self.kind.trained(self.unroll.speculator, state), self.origin, self._best(done)
            )
        self.accelerator.wait_for_everyone()

    def _exported(self, state: dict[str, Any]) -> dict[str, Any]:
        """Returns the validation acceptance of the best speculator as exported.

        This shows the cost of the stored precision: block FP8 rounds trained weights, and merged
        adapters are rounded to the experts' dtype.
        """
        written = self.kind.load(
            self._best(state["best_step"]),
            self.spec.target_dir,
            self.unroll.ends.dtype,
            self.device,
        )
        profile = self.validation.profile(ChainUnroll(written, self.unroll.ends, self.depth).eval())
        self.metrics.write(
            state["evaluated_at"], {f"exported_{name}": value for name, value in profile.items()}
        )
        self._say(export_line(state["base"], state["best"], profile))
        return profile

    def _masked(self, rows: Sequence[Row], reading: Reading) -> frozenset[int]:
        """Returns the step's off-policy samples; each process checks its own rows."""
        if not self.config.streams:
            return frozenset()
        own = rows[self.accelerator.process_index :: self.accelerator.num_processes]
        mine = [index for row in own for index in row]
        off = reading.off_policy([self.samples[index].sequence_id for index in mine])
        judged = [index for index, is_off in zip(mine, off, strict=True) if is_off]
        return frozenset(gather_object(judged))

    def _some_process_stops(self) -> bool:
        stop = self.stop_requested or (
            self.accelerator.is_main_process and self.spec.stop_file.exists()
        )
        stops = torch.tensor([float(stop)], device=self.device)
        return bool(self.accelerator.reduce(stops, reduction="sum").item())

    def _say(self, line: str) -> None:
        self.accelerator.print(line, flush=True)

    @property
    def _checkpoints(self) -> Path:
        return self.spec.out_dir / "checkpoints"

    def _best(self, done: int) -> Path:
        return self.spec.out_dir / "best" / f"step-{done:07d}"
