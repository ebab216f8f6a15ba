"""The trainer compared with plain implementations: loss and training step.

    python -m benchmarks.training loss --tokens 4096        # chunked loss: time and peak memory
    python -m benchmarks.training loss --tokens 512 --depth 3 --naive   # against full logits
    outrider train resume_screening.yaml --stages ingest,split
    python -m benchmarks.training states        # writes runs/resume_screening/states for `step`
    python -m benchmarks.training step          # nano R1, against a loop over transformers' layer

States come from transformers in float32; captured states differ from them by bf16 rounding. Blocks
of the compared variants alternate; speedups are medians of paired ratios. Times are CPU seconds of
one thread, which other work on the machine hardly affects. Prints one line of JSON.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

VOCABULARY, HIDDEN = 129_280, 7168


def loss(args: argparse.Namespace) -> dict[str, Any]:
    """Times the KL loss at every depth, forward and backward, in bf16.

    `naive` is one plain loss per depth. `naive_kept` keeps p of all targets for all depths, which
    takes another [N, V] tensor in float32.
    """
    from outrider.training.losses import distillation_loss
    from outrider.training.teacher import ServedSampling

    torch.manual_seed(0)
    head_VH = torch.empty(VOCABULARY, HIDDEN, dtype=torch.bfloat16).uniform_(-0.06, 0.06)
    # Logits with standard deviation 3: the top token of 129,280 has a probability of about 1/3.
    teacher_NH = torch.randn(args.tokens, HIDDEN).bfloat16()
    noise_KNH = 0.5 * torch.randn(args.depth, args.tokens, HIDDEN)
    u_KNH = (teacher_NH + noise_KNH).bfloat16().requires_grad_()
    token_N = torch.randint(0, VOCABULARY, (args.tokens,))
    every = torch.ones(args.tokens)
    served = ServedSampling(every * args.temperature, every * args.top_p, probabilistic=False)

    def chunked() -> float:
        valid_KN = torch.ones(args.depth, args.tokens, dtype=torch.bool)
        loss_KN, _ = distillation_loss(
            u_KNH=u_KNH,
            teacher_NH=teacher_NH,
            token_N=token_N,
            valid_KN=valid_KN,
            lm_head_VH=head_VH,
            served=served,
            kind=args.kind,
        )
        return backward(loss_KN.sum())

    def plain_p() -> Tensor:
        with torch.no_grad():
            return _plain_p(F.linear(teacher_NH, head_VH), args.temperature, args.top_p)

    def plain_depth(u_NH: Tensor, p_NV: Tensor) -> float:
        return backward(
            F.kl_div(F.linear(u_NH, head_VH).float().log_softmax(-1), p_NV, reduction="sum")
        )

    def naive() -> float:
        return sum(plain_depth(u_NH, plain_p()) for u_NH in u_KNH)

    def naive_kept() -> float:
        p_NV = plain_p()
        return sum(plain_depth(u_NH, p_NV) for u_NH in u_KNH)

    def backward(value: Tensor) -> float:
        value.backward()
        return value.item()

    ways = {"chunked": chunked}
    if args.naive:
        ways |= {"naive": naive, "naive_kept": naive_kept}
    result: dict[str, Any] = {
        "tokens": args.tokens,
        "depth": args.depth,
        "kind": args.kind,
        "temperature": args.temperature,
        "top_p": args.top_p,
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    gradients = {}
    for repeat in range(args.repeats):
        for name, way in ways.items():
            before = _reset_peak()
            began = time.process_time()
            value = way()
            seconds[name].append(time.process_time() - began)
            peak = (_status("VmHWM") - before) / 1e6
            result[f"{name}_peak_gb"] = round(max(peak, result.get(f"{name}_peak_gb", 0.0)), 2)
            result[f"{name}_loss"] = value / (args.depth * args.tokens)
            gradients[name] = u_KNH.grad.float()
            u_KNH.grad = None
            print(f"# {repeat} {name} {seconds[name][-1]:.1f} CPU s, {peak:.2f} GB", flush=True)
    result |= {
        f"{name}_cpu_s": round(statistics.median(times), 2) for name, times in seconds.items()
    }
    return result | over_chunked(seconds, gradients)


def over_chunked(
    seconds: dict[str, list[float]], gradients: dict[str, Tensor]
) -> dict[str, dict[str, Any]]:
    """The plain losses' times over the chunked one's, and the cosines of their gradients."""
    chunked = gradients["chunked"].flatten()
    ratios = {}
    for name in sorted(seconds.keys() - {"chunked"}):
        cosine = F.cosine_similarity(gradients[name].flatten(), chunked, dim=0)
        ratio = _ratio(seconds[name], seconds["chunked"])
        ratios[name] = ratio | {"gradient_cosine": cosine.item()}
    return ratios


def step(args: argparse.Namespace) -> dict[str, Any]:
    """Compares optimizer steps with the plain loop's: same sequences and weights."""
    bench = StepBench(args)
    return bench.compare({"plain": bench.plain_step, "ours": bench.our_step}, "plain", "ours")


@torch.no_grad()
def states(args: argparse.Namespace) -> dict[str, Any]:
    """Writes states of training sequences, also those before `--layers`."""
    from transformers import DeepseekV3ForCausalLM

    from outrider.common.files import read_json
    from outrider.data.features.feature_writer import FeatureWriter
    from outrider.data.sequences import load_sequences
    from outrider.serving.config import TargetConfig
    from outrider.speculators.features import (
        FINAL_NORM,
        FeatureSpec,
        FeatureStream,
        SequenceStates,
    )

    model = DeepseekV3ForCausalLM.from_pretrained(
        TargetConfig().directory(), dtype=torch.float32
    ).eval()
    parts = read_json(args.run / "split" / "parts.json")
    ids = parts["train"][: args.train] + parts["heldout"][: args.heldout]
    width = model.config.hidden_size
    source = {"states": "transformers float32"}
    streams = tuple(FeatureStream(f"layer_{index}", width) for index in args.layers)
    spec = FeatureSpec(streams).stored(width)
    with FeatureWriter(args.run / "states", spec, source, shard_megabytes=4) as writer:
        for row in load_sequences(args.run / "traffic" / "sequences", ids):
            if row["sequence_id"] not in writer.done:
                token_ids = torch.tensor(row["token_ids"])
                out = model.model(token_ids[None], output_hidden_states=True)
                layers = {f"layer_{index}": out.hidden_states[index][0] for index in args.layers}
                states = SequenceStates(
                    token_ids=token_ids,
                    completion_start=row["completion_start"],
                    streams=layers | {FINAL_NORM: out.last_hidden_state[0]},
                )
                writer.write(row["sequence_id"], states)
        return {"sequences": len(writer.done)}


class StepBench:
    """Steps on one row of sequences, in float32 (fastest on a CPU)."""

    def __init__(self, args: argparse.Namespace):
        from outrider.common.files import read_json
        from outrider.data.features.feature_store import FeatureStore
        from outrider.data.sequences import load_sequences
        from outrider.serving.config import TargetConfig
        from outrider.speculators.checkpoints.target_ends import load_target_ends
        from outrider.speculators.kinds.mtp.checkpoint import load_mtp
        from outrider.training.config import TrainingConfig
        from outrider.training.distributed.accelerator import ChainUnroll
        from outrider.training.distributed.spec import SequenceSampling
        from outrider.training.objective import Objective
        from outrider.training.packing import make_samples, plan_epoch

        self.args = args
        target = TargetConfig().directory()
        self.store = FeatureStore.open(args.run / "states")
        rows = load_sequences(args.run / "traffic" / "sequences").select_columns(
            ["sequence_id", "temperature", "top_p", "top_k", "constraint"]
        )
        self.sampling = {
            row["sequence_id"]: SequenceSampling(
                temperature=row["temperature"],
                top_p=row["top_p"],
                top_k=row["top_k"],
                hard=bool(row["constraint"]),
            )
            for row in rows
        }
        train = read_json(args.run / "split" / "parts.json")["train"][:100]
        chosen = [self.store.sequences[name] for name in train]
        self.samples, _ = make_samples(chosen, args.row_tokens)
        self.steps = plan_epoch(self.samples, args.row_tokens, 1, seed=0, epoch=0)
        self.ends = load_target_ends(target)
        self.model = ChainUnroll(load_mtp(target), self.ends, args.depth)
        config = TrainingConfig()
        self.objective = Objective(
            config=config,
            depth=args.depth,
            lm_head_VH=self.ends.lm_head_VH,
            samples=self.samples,
            sampling=self.sampling,
            probabilistic=False,
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self.plain = PlainLoop(target, self.model.speculator, self.ends, args.depth)
        self.plain_optimizer = torch.optim.AdamW(self.plain.parameters(), lr=1e-5)

    def our_step(self, turn: int) -> tuple[float, int]:
        """Returns a step's loss and its number of tokens."""
        from outrider.training.batches import assemble_batch

        row = self.steps[turn % len(self.steps)][0]
        batch = assemble_batch(
            store=self.store,
            samples=self.samples,
            row=row,
            row_tokens=self.args.row_tokens,
            spec=self.store.spec,
        )
        in_step = [self.samples[index] for index in row]
        value, _ = self.objective.row_loss(
            self.model.unroll_batch(batch), batch, self.objective.loss_weights(in_step)
        )
        self._update(value, self.model, self.optimizer)
        return value.item(), sum(sample.length for sample in in_step)

    def plain_step(self, turn: int) -> tuple[float, int]:
        """Runs a step on the same sequences in a padded batch."""
        row = self.steps[turn % len(self.steps)][0]
        in_step = [self.samples[index] for index in row]
        features = [self.store.read(sample.sequence_id) for sample in in_step]
        sampling = [self.sampling[sample.sequence_id] for sample in in_step]
        value = self.plain.loss(in_step, features, sampling, self.objective.loss_weights(in_step))
        self._update(value, self.plain, self.plain_optimizer)
        return value.item(), sum(sample.length for sample in in_step)

    def compare(
        self, ways: dict[str, Callable[[int], tuple[float, int]]], slow: str, fast: str
    ) -> dict[str, Any]:
        """Times both variants alternately on the same rows, after a warm-up round."""
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        losses: dict[str, list[float]] = {name: [] for name in ways}
        tokens = 0
        for turn in range(self.args.repeats + 1):
            for name, way in ways.items():
                began = time.process_time()
                value, count = way(turn)
                if turn:
                    seconds[name].append(time.process_time() - began)
                    losses[name].append(value)
            tokens += count if turn else 0
        result = {
            "depth": self.args.depth,
            "row_tokens": self.args.row_tokens,
            "steps": self.args.repeats,
        }
        for name, times in seconds.items():
            result[f"{name}_tokens_per_cpu_s"] = round(tokens / sum(times))
        for name, values in losses.items():
            result[f"{name}_loss"] = round(statistics.mean(values), 5)
        return result | _ratio(seconds[slow], seconds[fast])

    @staticmethod
    def _update(value: Tensor, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


class PlainLoop(torch.nn.Module):
    """A plain unroll with transformers' layer.

    Every depth processes whole padded sequences, with earlier depths' keys in transformers' cache
    and one dense mask. The loss uses full logits of the completions, softmax and autograd.
    """

    def __init__(self, target_dir: Path, speculator: Any, ends: Any, depth: int):
        from transformers import DeepseekV3Config
        from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
            DeepseekV3DecoderLayer,
            DeepseekV3RotaryEmbedding,
        )

        super().__init__()
        self.config = DeepseekV3Config.from_pretrained(target_dir)
        self.config._attn_implementation = "sdpa"
        # transformers' default when it loads a model
        self.config._experts_implementation = "grouped_mm"
        self.layer = DeepseekV3DecoderLayer(self.config, self.config.num_hidden_layers - 1)
        self.layer.self_attn.layer_idx = 0
        self.layer.load_state_dict(speculator.block.state_dict())
        self.rotary = DeepseekV3RotaryEmbedding(self.config)
        for name in ("enorm", "hnorm", "norm"):
            module = torch.nn.RMSNorm(self.config.hidden_size, eps=self.config.rms_norm_eps)
            module.load_state_dict(getattr(speculator, name).state_dict())
            self.add_module(name, module)
        self.eh_proj = torch.nn.Linear(
            2 * self.config.hidden_size, self.config.hidden_size, bias=False
        )
        self.eh_proj.load_state_dict(speculator.eh_proj.state_dict())
        self.ends, self.depth = ends, depth

    def loss(
        self, samples: list[Any], features: list[Any], sampling: list[Any], share_K: Tensor
    ) -> Tensor:
        """KL(p||q) over all depths and completions, with weights `share_K`."""
        from transformers import DynamicCache

        pad = torch.nn.utils.rnn.pad_sequence
        token_BT = pad([states.token_ids.long() for states in features], batch_first=True)
        hidden_BTH = pad([states.hidden.float() for states in features], batch_first=True)
        rows, width = token_BT.shape
        length_B = torch.tensor([sample.length for sample in samples])
        first_B = torch.tensor([sample.first_anchor for sample in samples])
        index_T = torch.arange(width)
        causal_TT = index_T[None] <= index_T[:, None]
        own_TT = torch.eye(width, dtype=torch.bool)
        p_BTV = self._target(hidden_BTH, sampling)
        cache = DynamicCache(config=self.config)
        state_BTH = hidden_BTH
        total = 0.0
        for s in range(self.depth):
            embedding_BTH = F.embedding(
                token_BT[:, (index_T + 1 + s).clamp(max=width - 1)], self.ends.embedding_VH
            )
            embedding_BTH = embedding_BTH.masked_fill((index_T + s == 0)[None, :, None], 0)
            x_BTH = self.eh_proj(
                torch.cat([self.enorm(embedding_BTH), self.hnorm(state_BTH)], dim=-1)
            )
            position_BT = (index_T + s).expand(rows, -1)
            mask = torch.cat([causal_TT, *[own_TT] * s], dim=1).expand(rows, 1, -1, -1)
            out_BTH = self.layer(
                x_BTH,
                attention_mask=mask,
                position_ids=position_BT,
                position_embeddings=self.rotary(x_BTH, position_ids=position_BT),
                past_key_values=cache,
                use_cache=True,
            )
            state_BTH = self.norm(out_BTH)
            counted_BT = (index_T >= first_B[:, None]) & (index_T + 2 + s < length_B[:, None])
            b, i = counted_BT.nonzero(as_tuple=True)
            log_q_NV = F.linear(state_BTH[b, i], self.ends.lm_head_VH).log_softmax(-1)
            total = total + share_K[s] * F.kl_div(log_q_NV, p_BTV[b, i + 1 + s], reduction="sum")
        return total

    @torch.no_grad()
    def _target(self, hidden_BTH: Tensor, sampling: list[Any]) -> Tensor:
        logits_BTV = F.linear(hidden_BTH, self.ends.lm_head_VH)
        return torch.stack(
            [
                _plain_p(logits, temperature, top_p)
                for logits, (temperature, top_p, *_) in zip(logits_BTV, sampling, strict=True)
            ]
        )


def _plain_p(logits_NV: Tensor, temperature: float, top_p: float) -> Tensor:
    """p as served; sorts the vocabulary if top_p is below 1."""
    scaled_NV = logits_NV.float() / temperature
    if top_p < 1:
        ordered_NV, order_NV = scaled_NV.sort(dim=-1)
        dropped_NV = ordered_NV.softmax(-1).cumsum(-1) <= 1 - top_p
        dropped_NV[:, -1] = False
        scaled_NV = scaled_NV.scatter(
            -1, order_NV, ordered_NV.masked_fill(dropped_NV, float("-inf"))
        )
    return scaled_NV.softmax(-1)


def _ratio(slow: list[float], fast: list[float]) -> dict[str, Any]:
    ratios = [a / b for a, b in zip(slow, fast, strict=True)]
    return {
        "times_faster": round(statistics.median(ratios), 2),
        "ratios": [round(ratio, 2) for ratio in ratios],
    }


def _status(field: str) -> int:
    """A field of /proc/self/status, in kilobytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise KeyError(field)


def _reset_peak() -> int:
    """Resets the peak of the resident set and returns it, in kilobytes."""
    Path("/proc/self/clear_refs").write_text("5")
    return _status("VmRSS")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["loss", "states", "step"])
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument(
        "--naive", action="store_true", help="compare with whole logits and autograd"
    )
    parser.add_argument("--kind", default="kl")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument(
        "--run",
        type=Path,
        default=Path("runs/resume_screening"),
        help="a run with a finished split",
    )
    parser.add_argument("--row-tokens", type=int, default=2048)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--train", type=int, default=100, help="number of training sequences")
    parser.add_argument("--heldout", type=int, default=40)
    parser.add_argument("--layers", type=int, nargs="*", default=[], help="auxiliary states")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(json.dumps({"loss": loss, "states": states, "step": step}[args.what](args)))


if __name__ == "__main__":
    main()
