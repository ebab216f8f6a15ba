"""EAGLE-3 training in Outrider compared with `speculators` from PyPI.

    outrider train resume_screening.yaml --stages ingest,split
    python -m benchmarks.training states --train 400 --heldout 48 --layers 2 8 13
    python -m venv theirs && theirs/bin/pip install speculators==0.9.0
    python -m benchmarks.against_speculators --their-python theirs/bin/python

Both train the same head from the same weights, in float32, with AdamW, the same learning rate and
loss (KL over the draft vocabulary, weighted by decay ** depth), on the same rows of packed
sequences in the same order. Each side is a process; they alternate by row, so that they share the
machine's noise. Held-out responses are then replayed exactly with both heads, and the peak memory
of both processes is compared.

Outrider's side uses the trainer's rows, unroll and objective. The other side calls the library's
model and losses as its trainer does. On a CPU this needs eager attention (the default, flex
attention, has no backward pass there), eager losses (the fused ones need Triton), and an identity
in place of the target's final norm, because the stored states are already normalized.
"""

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOSS_DECAY = 0.8
WARM_UP = 30
"""Number of warm-up steps."""


def learning_rate(args: argparse.Namespace, step: int, steps: int) -> float:
    """Linear warm-up with cosine decay to zero."""
    import math

    warm = min(1.0, (step + 1) / WARM_UP)
    rate: float = args.learning_rate * warm * 0.5 * (1 + math.cos(math.pi * step / steps))
    return rate


# Code of both processes. The other library's process does not import outrider.


def answer(work: Any) -> None:
    """Trains a row per line of stdin; prints time, loss, peak memory."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries goes to stderr
    print(json.dumps({"ready": True, "peak_mb": peak_mb()}), file=out, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        began = time.perf_counter()
        loss = work(command)
        answer = {"seconds": time.perf_counter() - began, "loss": loss, "peak_mb": peak_mb()}
        print(json.dumps(answer), file=out, flush=True)


def peak_mb() -> float:
    """Largest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def ours(args: argparse.Namespace) -> None:
    """Trains with Outrider's trainer parts."""
    import torch

    from outrider.common.files import read_json
    from outrider.data.features.feature_store import FeatureStore
    from outrider.serving.config import TargetConfig
    from outrider.speculators.checkpoints.target_ends import load_target_ends
    from outrider.speculators.kinds.eagle3.kind import Eagle3
    from outrider.speculators.kinds.protocol import Origin
    from outrider.training.batches import assemble_batch
    from outrider.training.config import TrainingConfig
    from outrider.training.distributed.accelerator import ChainUnroll
    from outrider.training.objective import Objective

    target_dir = TargetConfig(model=args.target).directory()
    samples, rows = planned(args)
    store = FeatureStore.open(args.run / args.states)
    kind = Eagle3()
    ends = load_target_ends(target_dir)
    head = kind.load(args.out / "start", target_dir, torch.float32)
    model = ChainUnroll(head, ends, args.depth)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    plain = {sample.sequence_id: (1.0, 1.0, 0) for sample in samples}
    config = TrainingConfig(loss="kl")
    objective = Objective(
        config=config,
        depth=args.depth,
        lm_head_VH=ends.lm_head_VH,
        samples=samples,
        sampling=plain,
        probabilistic=False,
    )
    configs = (read_json(path / "config.json") for path in (args.out / "start", target_dir))
    features = kind.features(*configs)

    def work(command: dict[str, Any]) -> float:
        if "write" in command:
            origin = Origin(target_dir, args.out / "start")
            tensors = kind.trained_tensors(head, head.state_dict())
            kind.write(tensors, origin, Path(command["write"]))
            return 0.0
        step = command["step"]
        row = rows[command["step"]]
        batch = assemble_batch(
            store=store, samples=samples, row=row, row_tokens=args.row_tokens, spec=features
        )
        share_K = objective.loss_weights([samples[index] for index in row])
        loss, _ = objective.row_loss(model.unroll_batch(batch), batch, share_K)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = learning_rate(args, step, len(rows))
        optimizer.step()
        return float(loss.detach())

    answer(work)


def theirs(args: argparse.Namespace) -> None:
    """Trains with the library's model and losses on the rows from `prepare`."""
    import torch
    from safetensors.torch import load_file, save_file
    from speculators.losses import resolve_loss_config
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.models.eagle3.data import shift_batch
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig

    from speculators.config import SpeculatorsConfig, VerifierConfig

    plain = json.loads((args.out / "start" / "config.json").read_text())
    ends = load_file(args.out / "ends.safetensors")
    of_the_head = ("architectures", "draft_vocab_size", "eagle_config", "norm_before_residual")
    layer = LlamaConfig(**{key: value for key, value in plain.items() if key not in of_the_head})
    layer._attn_implementation = "eager"
    proposal = GreedyTokenProposalConfig(speculative_tokens=args.depth)
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=plain["draft_vocab_size"],
        norm_before_residual=False,
        eagle_aux_hidden_state_layer_ids=plain["eagle_aux_hidden_state_layer_ids"],
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[proposal],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["DeepseekV3ForCausalLM"]),
        ),
    )
    model = Eagle3DraftModel(config).float()
    start = load_file(args.out / "start" / "model.safetensors")
    weights = {name.replace("midlayer.", "layers.0."): value for name, value in start.items()}
    head_rows = ends["lm_head"][weights["d2t"] + torch.arange(len(weights["d2t"]))]
    weights |= {"embed_tokens.weight": ends["embedding"], "verifier_lm_head.weight": head_rows}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    if set(missing) != {"verifier_norm.weight"} or unexpected:
        raise SystemExit(f"the library's head has other tensors: {missing}, {unexpected}")
    model.verifier_norm = torch.nn.Identity()
    model.lm_head.weight.requires_grad_(args.their_head == "trained")
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.95), weight_decay=0.0)
    losses = resolve_loss_config("kl_div", "eager")
    steps = len(list((args.out / "rows").glob("*.safetensors")))

    def work(command: dict[str, Any]) -> float:
        if "write" in command:
            names = {name: name.replace("layers.0.", "midlayer.") for name in weights}
            written = {
                names[name]: value.to(start[names[name]].dtype).contiguous()
                for name, value in model.state_dict().items()
                if names.get(name) in start
            }
            Path(command["write"]).mkdir(parents=True, exist_ok=True)
            save_file(written, Path(command["write"]) / "model.safetensors")
            text = (args.out / "start" / "config.json").read_text()
            (Path(command["write"]) / "config.json").write_text(text)
            return 0.0
        step = command["step"]
        row = load_file(args.out / "rows" / f"{step:05}.safetensors")
        pieces = [
            shift_batch({name: row[f"{name}.{number}"] for name in TENSORS})
            for number in range(sum(name.startswith("input_ids.") for name in row))
        ]
        joined = {name: torch.cat([piece[name] for piece in pieces])[None] for name in pieces[0]}
        document = [torch.full((len(p["input_ids"]),), n) for n, p in enumerate(pieces)]
        _, loss, _ = model(
            hidden_states=joined["hidden_states"].float(),
            input_ids=joined["input_ids"],
            document_ids=torch.cat(document)[None],
            loss_mask=joined["loss_mask"],
            position_ids=joined["position_ids"],
            verifier_last_hidden_states=joined["verifier_last_hidden_states"].float(),
            ttt_steps=args.depth,
            ttt_step_loss_decay=LOSS_DECAY,
            loss_config=losses,
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.param_groups[0]["lr"] = learning_rate(args, step, steps)
        optimizer.step()
        return float(loss.detach())

    answer(work)


TENSORS = (
    "input_ids",
    "hidden_states",
    "verifier_last_hidden_states",
    "loss_mask",
    "lengths",
    "position_ids",
)
"""Tensors of one sequence that the other library's `shift_batch` takes."""


# Code that needs Outrider: plan, rows for the other side, coordinator, evaluation.


def planned(args: argparse.Namespace) -> tuple[list[Any], list[Any]]:
    """Returns samples and the rows of all epochs, one per step."""
    from outrider.common.files import read_json
    from outrider.data.features.feature_store import FeatureStore
    from outrider.training.packing import make_samples, plan_epoch

    store = FeatureStore.open(args.run / args.states)
    train = read_json(args.run / "split" / "parts.json")["train"]
    chosen = [store.sequences[name] for name in train if name in store.sequences]
    samples, _ = make_samples(chosen[: args.sequences], args.row_tokens)
    rows = []
    for epoch in range(args.epochs):
        rows += [
            row
            for [row] in plan_epoch(
                samples=samples,
                row_tokens=args.row_tokens,
                rows_per_step=1,
                seed=args.seed,
                epoch=epoch,
            )
        ]
    return samples, rows


def prepare(args: argparse.Namespace) -> int:
    """Writes the initial head and the other side's rows; returns their number."""
    import torch
    from safetensors.torch import save_file

    from outrider.common.files import read_json
    from outrider.data.features.feature_store import FeatureStore
    from outrider.serving.config import TargetConfig
    from outrider.speculators.checkpoints.target_ends import load_target_ends
    from outrider.speculators.draft_vocabulary import token_counts
    from outrider.speculators.head_config import HeadConfig
    from outrider.speculators.kinds.eagle3.kind import Eagle3
    from outrider.speculators.kinds.protocol import Origin

    target_dir = TargetConfig(model=args.target).directory()
    store = FeatureStore.open(args.run / args.states)
    ends = load_target_ends(target_dir)
    samples, rows = planned(args)
    read = {sample.sequence_id: store.read(sample.sequence_id) for sample in samples}
    vocab = ends.lm_head_VH.shape[0]
    responses = [states.token_ids[states.completion_start :] for states in read.values()]
    origin = Origin(
        target_dir,
        None,
        HeadConfig(draft_vocabulary=args.draft_vocabulary),
        lambda: token_counts(responses, vocab)[None],
    )
    kind = Eagle3()
    head = kind.start(origin, torch.float32, "cpu", seed=args.seed)
    kind.write(kind.trained_tensors(head, head.state_dict()), origin, args.out / "start")
    ends_VH = {"embedding": ends.embedding_VH.float(), "lm_head": ends.lm_head_VH.float().clone()}
    save_file(ends_VH, args.out / "ends.safetensors")
    (args.out / "rows").mkdir(exist_ok=True)
    configs = (read_json(path / "config.json") for path in (args.out / "start", target_dir))
    layers = kind.features(*configs)
    for step, row in enumerate(rows):
        tensors = {}
        for number, index in enumerate(row):
            sample = samples[index]
            states = read[samples[index].sequence_id]
            length = sample.length
            mask = torch.zeros(length, dtype=torch.bool)
            # Depth 0 trains on the tokens that start a chain in the engine: i + 1 from the first
            # anchor on, if there is a token i + 2 to predict.
            mask[sample.first_anchor + 1 : length - 1] = True
            tensors |= {
                f"input_ids.{number}": states.token_ids[:length].long().clone(),
                f"hidden_states.{number}": layers.inputs(states)[:length].clone(),
                f"verifier_last_hidden_states.{number}": states.hidden[:length].clone(),
                f"loss_mask.{number}": mask,
                f"lengths.{number}": torch.tensor([length]),
                f"position_ids.{number}": torch.arange(length),
            }
        save_file(tensors, args.out / "rows" / f"{step:05}.safetensors")
    return len(rows)


class Side:
    """A process that trains on demand."""

    def __init__(self, name: str, python: str, args: argparse.Namespace) -> None:
        shared = ("run", "out", "depth", "target", "states", "sequences", "epochs", "row_tokens")
        shared += ("their_head", "learning_rate", "seed")
        forwarded: list[str] = []
        for key in shared:
            option = "--" + key.replace("_", "-")
            forwarded += [option, str(getattr(args, key))]
        threads = {"OMP_NUM_THREADS": str(args.threads)}
        script = Path(__file__).resolve()
        command = ["-m", "benchmarks.against_speculators"] if name == "ours" else [str(script)]
        self.process = subprocess.Popen(
            [python, *command, "--side", name, *forwarded],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | threads,
        )
        self.name = name
        self.loaded_mb = self._read()["peak_mb"]
        self.peak_mb = 0.0
        self.seconds = 0.0
        self.losses = [0.0][:0]

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended: {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, **command: Any) -> None:
        """Runs one command and adds its time to the total."""
        assert self.process.stdin is not None
        print(json.dumps(command), file=self.process.stdin, flush=True)
        answer = self._read()
        if "step" in command:
            self.seconds += answer["seconds"]
            self.losses.append(answer["loss"])
            self.peak_mb = answer["peak_mb"]


@contextlib.contextmanager
def both(args: argparse.Namespace) -> Iterator[list[Side]]:
    """Yields the two processes and stops them afterwards."""
    sides: list[Side] = []
    try:
        sides.append(Side("ours", sys.executable, args))
        sides.append(Side("theirs", args.their_python, args))
        yield sides
    finally:
        for side in sides:
            if side.process.stdin is not None:
                side.process.stdin.close()
            side.process.wait()


def compare(args: argparse.Namespace) -> None:
    """Trains both in alternation, replays both, and prints the table."""
    from outrider.eval.replay import replay

    args.out.mkdir(parents=True, exist_ok=True)
    steps = prepare(args)
    samples, rows = planned(args)
    tokens = sum(samples[index].length for row in rows for index in row)
    with both(args) as sides:
        for step in range(steps):
            # The order alternates from row to row.
            for side in sides if step % 2 else reversed(sides):
                side.ask(step=step)
            if step % 20 == 19 or step + 1 == steps:
                done = ", ".join(f"{s.name} {s.seconds:.0f} s" for s in sides)
                print(f"row {step + 1} of {steps}: {done}", file=sys.stderr, flush=True)
        for side in sides:
            side.ask(write=str(args.out / side.name))
    print("| | training tokens/s | peak memory, MB | for training | acceptance, k = 1 .. K |")
    print("|---|---|---|---|---|")
    sums = [judge(args, args.out / side.name) for side in sides]
    for side, replayed in zip(sides, sums, strict=True):
        lengths = ", ".join(f"{length:.3f}" for length in replayed.acceptance_length())
        print(
            f"| {side.name} | {tokens / side.seconds:.0f} | {side.peak_mb:.0f} |"
            f" {side.peak_mb - side.loaded_mb:.0f} | {lengths} |"
        )
    for k in range(1, args.depth + 1):
        ratio = replay.compare(sums[1], sums[0], k)["ratio"]
        print(f"ours / theirs at k = {k}: {ratio.value:.4f} [{ratio.low}, {ratio.high}]")


def judge(args: argparse.Namespace, head_dir: Path) -> Any:
    """Sums of an exact greedy replay of the held-out responses."""
    from outrider.common.files import read_json
    from outrider.data.features.feature_store import FeatureStore
    from outrider.data.sequences import load_sequences
    from outrider.eval.replay.heldout_replay import COLUMNS
    from outrider.eval.replay.replay import replay
    from outrider.serving.config import TargetConfig

    store = FeatureStore.open(args.run / args.states)
    heldout = read_json(args.run / "split" / "parts.json")["heldout"]
    ids = [name for name in heldout if name in store.sequences]
    table = load_sequences(args.run / "traffic" / "sequences", ids).select_columns(COLUMNS)
    target_dir = TargetConfig(model=args.target).directory()
    return replay(
        speculator=head_dir,
        target_dir=target_dir,
        feature_store=store,
        rows=list(table),
        depth=args.depth,
        draft_sample_method="greedy",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=Path("runs/resume_screening"))
    parser.add_argument("--out", type=Path, default=Path("runs/against_speculators"))
    parser.add_argument("--target", default="nano_r1")
    parser.add_argument("--states", default="states", help="feature store's folder in the run")
    parser.add_argument("--their-python", help="Python of an environment with speculators 0.9")
    parser.add_argument("--sequences", type=int, default=400)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--row-tokens", type=int, default=2048)
    parser.add_argument("--draft-vocabulary", type=int, default=256)
    parser.add_argument("--learning-rate", type=float, default=2e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0, help="of the weights and of the rows")
    parser.add_argument(
        "--their-head",
        choices=["frozen", "trained"],
        default="frozen",
        help="frozen: as in the library",
    )
    parser.add_argument("--side", choices=["ours", "theirs"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    {"ours": ours, "theirs": theirs, None: compare}[args.side](args)


if __name__ == "__main__":
    main()
