"""Trains nano R1, target and MTP layer together, and publishes its checkpoint.

    OMP_NUM_THREADS=1 torchrun --nproc-per-node 2 -m tools.nano_r1.build CORPUS_DIR

One process per core is faster than one process with many threads, because the matrices are small.
Weights are bf16 with fp32 master copies. The learning rate is constant after warm-up and decays
linearly over the last third (a run resumed with fewer --steps decays sooner). The loss covers
completion tokens only. The MTP layer joins after a fraction `MTP_FROM` of the steps, when its input
states have settled, at depth 1 as in DeepSeek's training. Routing is balanced by DeepSeek-V3's
bias, without an auxiliary loss. A run resumes from the checkpoint in --work-dir.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from outrider.common.files import publish
from outrider.pipeline.recipe.shipped import SHIPPED
from outrider.speculators.layers.decoder_layer import ExpertRouter
from tools.nano_r1.model import CONFIG, NanoR1, save_target
from tools.nano_r1.texts import encode, mixture, tokenizer_for

WARMUP_STEPS = 100
DECAY_SHARE = 0.35
MTP_FROM = 0.505
BIAS_SPEED = 1e-3
CHECKPOINT_EVERY = 200


class Trainer:
    """Model in bf16, fp32 master weights, optimizer, and number of conversations read."""

    def __init__(self, args: argparse.Namespace, tokenizer: PreTrainedTokenizerFast):
        self.args, self.tokenizer = args, tokenizer
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        torch.manual_seed(args.seed)
        self.model = NanoR1()
        self.masters = [p.detach().clone().requires_grad_() for p in self.model.parameters()]
        for parameter in self.model.parameters():
            parameter.data = parameter.data.bfloat16()
        matrices = [p for p in self.masters if p.dim() >= 2]
        vectors = [p for p in self.masters if p.dim() < 2]
        self.optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": 0.05}, {"params": vectors, "weight_decay": 0.0}],
            lr=args.learning_rate,
            betas=(0.9, 0.95),
            fused=True,
        )
        self.routers = [m for m in self.model.modules() if isinstance(m, ExpertRouter)]
        self.expert_counts = torch.zeros(len(self.routers), CONFIG["n_routed_experts"])
        for index, router in enumerate(self.routers):
            router.register_forward_hook(self._count(index))
        self.step, self.read = 0, 0

    def _count(self, index: int):
        def hook(_module, _inputs, output: tuple[Tensor, Tensor]) -> None:
            self.expert_counts[index] += (
                output[1].flatten().bincount(minlength=CONFIG["n_routed_experts"])
            )

        return hook

    def batches(self) -> Iterator[list[tuple[list[int], int]]]:
        """Yields this process's conversations: `tokens` per step, the last one cut.

        The number of tokens is constant, because oneDNN compiles and caches kernels per shape.
        """
        stream = mixture(self.args.corpus, self.args.seed + 1000 * (self.rank + 1), "train")
        for _ in itertools.islice(stream, self.read):
            pass
        while True:
            batch = []
            tokens = 0
            while tokens < self.args.tokens:
                ids, start = encode(next(stream), self.tokenizer)
                batch.append((ids[: self.args.tokens - tokens], start))
                tokens += len(batch[-1][0])
            yield batch

    def losses(
        self, batch: list[tuple[list[int], int]], with_mtp: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Mean cross-entropy over completion tokens, of the target and the first draft."""
        lengths = [len(ids) for ids, _ in batch]
        ids_N = torch.tensor([token for ids, _ in batch for token in ids])
        hidden_NH = self.model(ids_N, lengths)
        rows = completion_rows(batch, ahead=1)
        target = F.cross_entropy(self.model.lm_head(hidden_NH[rows]).float(), ids_N[rows + 1])
        if not with_mtp:
            return target, None
        state_NH = self.model.first_draft(ids_N, hidden_NH, lengths)
        rows = completion_rows(batch, ahead=2)
        logits = F.linear(state_NH[rows], self.model.lm_head.weight.detach())
        return target, F.cross_entropy(logits.float(), ids_N[rows + 2])

    def update(self, batch: list[tuple[list[int], int]]) -> tuple[float, float | None]:
        """One optimizer step on one batch per process."""
        with_mtp = self.step >= MTP_FROM * self.args.steps
        target, mtp = self.losses(batch, with_mtp)
        (target if mtp is None else target + mtp).backward()
        self._reduce_gradients()
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.args.learning_rate * schedule(self.step, self.args.steps)
        self.optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(self.model.parameters(), self.masters, strict=True):
                parameter.copy_(master)
        self._balance_routing()
        self.step = self.step + 1
        self.read = self.read + len(batch)
        return target.item(), None if mtp is None else mtp.item()

    def _reduce_gradients(self) -> None:
        parameters = list(self.model.parameters())
        flat = torch.cat(
            [
                torch.zeros(p.numel()) if p.grad is None else p.grad.flatten().float()
                for p in parameters
            ]
        )
        dist.all_reduce(flat)
        for parameter, master, part in zip(
            parameters, self.masters, flat.split([p.numel() for p in parameters]), strict=True
        ):
            # The MTP layer's master weights do not change until it joins: no gradient, no decay.
            master.grad = None if parameter.grad is None else part.view_as(master) / self.world
            parameter.grad = None

    def _balance_routing(self) -> None:
        dist.all_reduce(self.expert_counts)
        for router, counts in zip(self.routers, self.expert_counts, strict=True):
            router.e_score_correction_bias += BIAS_SPEED * (counts.mean() - counts).sign()
        self.expert_counts.zero_()

    def save(self) -> None:
        """Saves the state of the run, and publishes the target."""
        read = [torch.zeros((), dtype=torch.long) for _ in range(self.world)]
        dist.all_gather(read, torch.tensor(self.read))
        if self.rank == 0:
            biases = [r.e_score_correction_bias for r in self.routers]
            state = {
                "masters": self.masters,
                "optimizer": self.optimizer.state_dict(),
                "biases": biases,
                "step": self.step,
            }
            with publish(self.args.work_dir / "state.pt") as temporary:
                torch.save({**state, "read": [int(r) for r in read]}, temporary)
            save_target(self.model, self.tokenizer, self.args.out)
        dist.barrier()

    def resume(self) -> None:
        path = self.args.work_dir / "state.pt"
        if not path.exists():
            return
        state = torch.load(path, weights_only=True)
        with torch.no_grad():
            for parameter, master, saved in zip(
                self.model.parameters(), self.masters, state["masters"], strict=True
            ):
                master.copy_(saved)
                parameter.copy_(saved)
        for router, bias in zip(self.routers, state["biases"], strict=True):
            router.e_score_correction_bias.copy_(bias)
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]
        self.read = state["read"][self.rank]


def completion_rows(batch: list[tuple[list[int], int]], ahead: int) -> Tensor:
    """Rows i from the last prompt token on that have token i + `ahead`.

    Sequences are concatenated. The target (ahead 1) predicts every completion token from them; the
    MTP layer (ahead 2) drafts all but the first, which the engine always takes from the target.
    """
    offsets = itertools.accumulate((len(ids) for ids, _ in batch), initial=0)
    spans = [
        (offset + start - 1, offset + len(ids) - ahead)
        for offset, (ids, start) in zip(offsets, batch, strict=False)
    ]
    return torch.cat([torch.arange(begin, max(begin, end)) for begin, end in spans])


def schedule(step: int, steps: int) -> float:
    """Learning-rate factor: warm-up, constant, then linear decay over `DECAY_SHARE`."""
    decay = max(1, int(DECAY_SHARE * steps))
    return min(1.0, (step + 1) / WARMUP_STEPS, (steps - step) / decay)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, default=SHIPPED / "nano_r1" / "target")
    parser.add_argument(
        "--work-dir",
        type=Path,
        default=Path("runs/nano_r1"),
        help="state of the run, metrics.jsonl",
    )
    parser.add_argument("--steps", type=int, default=1900)
    parser.add_argument("--tokens", type=int, default=1280, help="a step and process")
    parser.add_argument("--learning-rate", type=float, default=1.5e-3)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.work_dir.mkdir(parents=True, exist_ok=True)
    dist.init_process_group("gloo")
    trainer = Trainer(args, tokenizer_for(args.corpus, args.seed))
    trainer.resume()
    started = time.monotonic()
    tokens = 0
    recent = []
    for batch in itertools.islice(trainer.batches(), args.steps - trainer.step):
        recent.append(trainer.update(batch))
        tokens += sum(len(ids) for ids, _ in batch)
        if trainer.step % 20 == 0 and trainer.rank == 0:
            target_losses = [loss for loss, _ in recent]
            mtp_losses = [loss for _, loss in recent if loss is not None]
            seconds = time.monotonic() - started
            line = {
                "step": trainer.step,
                "target_loss": round(statistics.mean(target_losses), 4),
                "mtp_loss": round(statistics.mean(mtp_losses), 4) if mtp_losses else None,
                "tokens_per_s": round(tokens * trainer.world / seconds),
                "seconds": round(seconds),
            }
            print(json.dumps(line), flush=True)
            with (args.work_dir / "metrics.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            recent = []
        if trainer.step % CHECKPOINT_EVERY == 0 or trainer.step == args.steps:
            trainer.save()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
