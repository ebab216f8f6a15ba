"""Measures nano R1 and writes its model card, recipes/nano_r1/README.md.

    python -m tools.nano_r1.card CORPUS_DIR [--training runs/nano_r1/metrics.jsonl]

The loss per task comes from validation texts. The other figures come from the recorded traffic,
whose token ids the target sampled at temperature 0.6 and top_p 0.95: how often the sampled token is
the most likely one, how often the MTP layer's first draft is accepted, and how often answers are
right. transformers computes the states, in float32 from the bf16 weights.
"""

import argparse
import dataclasses
import itertools
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AutoTokenizer, DeepseekV3ForCausalLM, PreTrainedTokenizerBase

from outrider.common.files import publish, read_json
from outrider.data.config import TrafficConfig
from outrider.data.ingest.ingest import ingest
from outrider.data.sequences import load_sequences
from outrider.eval.replay.replay import replay
from outrider.pipeline.recipe.shipped import SHIPPED, shipped_heads
from outrider.recipes.nano_r1 import tasks
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.kinds import trainable_kind_of
from outrider.speculators.kinds.eagle3.shape import EagleShape
from outrider.speculators.kinds.mtp.checkpoint import load_mtp
from tools.nano_r1 import heads
from tools.nano_r1.record import WORKLOADS
from tools.nano_r1.states import ComputedStates
from tools.nano_r1.texts import WORKS, encode
from tools.unrolled import unroll

HERE = SHIPPED / "nano_r1"
CHECKS = {
    "resume_screening": ("verdict and count of met requirements right", tasks.resume_correct),
    "document_extraction": ("all four fields right", tasks.receipt_correct),
    "social_chat": ("reply right for the order, or for the intent it names", tasks.support_correct),
}
VALIDATION_TEXTS = 60
TRAFFIC_SEQUENCES = 150
HEADS_DEPTH = 5


@dataclasses.dataclass
class Sums:
    """Sums over completion tokens."""

    tokens: int = 0
    nll: float = 0.0
    top1: int = 0
    drafts: int = 0
    drafts_accepted: int = 0


class Meter:
    """The target in float32 and its MTP layer, teacher-forced over given tokens."""

    def __init__(self, target_dir: Path):
        self.model = DeepseekV3ForCausalLM.from_pretrained(target_dir, dtype=torch.float32).eval()
        self.mtp = load_mtp(target_dir)
        self.ends = load_target_ends(target_dir)

    @torch.no_grad()
    def measure(self, sequences: Iterable[tuple[list[int], int]]) -> Sums:
        """Sums over the completions of (token_ids, completion_start)."""
        sums = Sums()
        for token_ids, start in sequences:
            ids_1T = torch.tensor(token_ids)[None]
            hidden_1TH = self.model.model(input_ids=ids_1T, use_cache=False).last_hidden_state
            logits = self.ends.logits(hidden_1TH[0, start - 1 : -1])
            said = ids_1T[0, start:]
            sums.tokens += len(said)
            sums.nll += F.cross_entropy(logits, said, reduction="sum").item()
            sums.top1 += int((logits.argmax(-1) == said).sum())
            position = torch.arange(len(token_ids))[None]
            (state_1TH,) = unroll(
                self.mtp,
                self.ends,
                token_ids_BT=ids_1T,
                inputs_BTX=hidden_1TH,
                sequence_BT=torch.zeros_like(ids_1T),
                position_BT=position,
                depth=1,
            )
            draft = self.ends.logits(state_1TH[0, start - 1 : -2]).argmax(-1)
            sums.drafts += len(draft)
            sums.drafts_accepted += int((draft == said[1:]).sum())
        return sums


def validation_table(
    meter: Meter, corpus_dir: Path, tokenizer: PreTrainedTokenizerBase
) -> list[str]:
    lines = ["| task | loss (nats per token) | perplexity | tokens |", "|---|---|---|---|"]
    for work, conversations in WORKS.items():
        texts = (
            encode(c, tokenizer)
            for c in conversations(corpus_dir, 11, VALIDATION_TEXTS, "validation")
        )
        sums = meter.measure(texts)
        loss = sums.nll / sums.tokens
        lines.append(f"| {work} | {loss:.3f} | {torch.tensor(loss).exp():.2f} | {sums.tokens:,} |")
    return lines


def traffic_table(
    meter: Meter, tokenizer: PreTrainedTokenizerBase, target_dir: Path
) -> tuple[list[str], list[str]]:
    """Table of the recorded traffic's figures, and one exchange per workload."""
    lines = [
        "| workload | exchanges | sampled token is the target's top-1 | base MTP's first draft "
        "accepted | cut off | answers right |",
        "|---|---|---|---|---|---|",
    ]
    samples = []
    for name in WORKLOADS:
        rows = logged_rows(name, target_dir)
        sums = meter.measure((r["token_ids"], r["completion_start"]) for r in exact_rows(rows))
        texts = [
            (
                row["prompt_text"],
                str(tokenizer.decode(row["token_ids"][row["completion_start"] :])),
            )
            for row in rows
        ]
        right = "no check"
        if name in CHECKS:
            what, check = CHECKS[name]
            right = f"{sum(check(*text) for text in texts) / len(texts):.1%} ({what})"
        cut = sum(row["finish_reason"] == "length" for row in rows) / len(rows)
        lines.append(
            f"| {name} | {len(rows):,} | {sums.top1 / sums.tokens:.1%} (n = {sums.tokens:,}) |"
            f" {sums.drafts_accepted / sums.drafts:.1%} | {cut:.1%} | {right} |"
        )
        samples += [f"### {name}", "```", "".join(texts[0]), "```"]
    return lines, samples


def logged_rows(name: str, target_dir: Path) -> list[dict[str, Any]]:
    """The recorded exchanges of a workload as token sequences."""
    path = str(HERE / "traffic" / f"{name}.jsonl.gz")
    with tempfile.TemporaryDirectory() as folder:
        ingest(target_dir, TrafficConfig(path=path), Path(folder))
        return load_sequences(Path(folder) / "sequences").to_list()


def exact_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first exchanges whose token ids were logged."""
    exact = (row for row in rows if row["fidelity"] == "exact")
    return list(itertools.islice(exact, TRAFFIC_SEQUENCES))


def heads_section(target_dir: Path) -> list[str]:
    """Sizes, shapes and acceptance of the shipped heads, next to the MTP layer's."""
    target_config = read_json(target_dir / "config.json")
    drafters = {"MTP layer": target_dir}
    sizes = []
    layers = set()
    for name, directory in shipped_heads().items():
        shape = EagleShape.read(read_json(directory / "config.json"), target_config, directory)
        layers |= set(shape.layers)
        weights = directory / "model.safetensors"
        sizes.append(
            f"- `{name}`: {trainable_kind_of(directory).in_words}, {shape.drafts:,} draft tokens,"
            f" states before layers {', '.join(map(str, shape.layers))},"
            f" {weights.stat().st_size / 1e6:.1f} MB."
        )
        drafters[f"`{name}`"] = directory
    lines = [
        f"| workload | {' | '.join(drafters)} |",
        f"|---|{'---|' * len(drafters)}",
    ]
    for name in WORKLOADS:
        rows = exact_rows(logged_rows(name, target_dir))
        states = ComputedStates(target_dir, rows, sorted(layers))
        lengths = (
            replay(
                speculator=directory,
                target_dir=target_dir,
                feature_store=states,
                rows=rows,
                depth=HEADS_DEPTH,
            ).acceptance_length()[-1]
            for directory in drafters.values()
        )
        lines.append(f"| {name} | {' | '.join(f'{length:.2f}' for length in lengths)} |")
    exchanges = heads.ENDPOINT.exchanges
    epochs = heads.SETTINGS["training.scratch_epochs"]
    return [
        f"## Base heads (acceptance length at K = {HEADS_DEPTH}, exact replay of"
        f" {TRAFFIC_SEQUENCES} exchanges with logged ids)",
        "",
        *lines,
        "",
        *sizes,
        "",
        f"Trained from scratch by `heads.py` with Outrider's stages, for {epochs} epochs on"
        f" {exchanges:,} exchanges: nano R1's answers, at temperature 0.6 and top_p 0.95, to"
        " prompts from the training part of the general mixture, which contains no prompt of the"
        " recorded traffic. They stand in for public heads, as a base for `speculator.kind: eagle3`"
        " or `p_eagle`.",
    ]


def card(corpus_dir: Path, training_log: Path) -> str:
    """The model card as Markdown."""
    target_dir = HERE / "target"
    meter = Meter(target_dir)
    tokenizer = AutoTokenizer.from_pretrained(target_dir)
    config = read_json(target_dir / "config.json")
    parameters = sum(p.numel() for p in [*meter.model.parameters(), *meter.mtp.parameters()])
    last = json.loads(training_log.read_text().splitlines()[-1])
    traffic, samples = traffic_table(meter, tokenizer, target_dir)
    return "\n".join(
        [
            "# Nano R1: model card",
            "",
            "A small model of exactly DeepSeek-R1's architecture (`DeepseekV3ForCausalLM`: "
            "multi-head latent attention, experts"
            " routed by sigmoid scores without an auxiliary loss, a shared expert, one native "
            "MTP layer), with an R1-style"
            " tokenizer and chat template. It stands in for R1 wherever R1 does not fit: every "
            "stage of Outrider runs on it for"
            " real. It knows only four narrow tasks, generated by programs from public data.",
            "",
            f"- {config['num_hidden_layers']} layers, hidden {config['hidden_size']}, "
            f"{config['num_attention_heads']} heads,"
            f" {config['n_routed_experts']} routed experts "
            f"({config['num_experts_per_tok']} per token), vocabulary"
            f" {config['vocab_size']:,}, {config['max_position_embeddings']:,} positions; "
            f"{parameters / 1e6:.1f} M parameters,"
            f" {(target_dir / 'model.safetensors').stat().st_size / 1e6:.1f} MB in bf16.",
            f"- Trained for {last['step']:,} steps of 2,560 tokens on 2 CPU cores (`build.py`, "
            "seed 0), together with the MTP layer at"
            " depth 1, on the general mixture. The texts: GSM8K (MIT), SROIE receipts (MIT), "
            "Taskmaster-4 (CC-BY-4.0),"
            " banking77 (CC-BY-4.0), and résumés and postings from a generator; no person in "
            "them is real.",
            "- For tests only: its arithmetic is mostly wrong, and its verdicts are about invented "
            "people.",
            "",
            f"## Validation ({VALIDATION_TEXTS} unseen texts per task; completion tokens only)",
            "",
            *validation_table(meter, corpus_dir, tokenizer),
            "",
            "## Recorded traffic (temperature 0.6, top_p 0.95; token shares over "
            f"{TRAFFIC_SEQUENCES} exchanges with logged ids)",
            "",
            *traffic,
            "",
            "Recorded by `record.py` from a real `vllm serve`, with prompts that it was not "
            "trained on and arrival times from a"
            " public trace of LLM requests (AzureLLMInferenceTrace, CC-BY-4.0), stretched "
            "over two weeks.",
            "",
            *heads_section(target_dir),
            "",
            "## Samples (the first exchange of each workload)",
            "",
            *samples,
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--training", type=Path, default=Path("runs/nano_r1/metrics.jsonl"))
    args = parser.parse_args()
    text = card(args.corpus, args.training)
    with publish(HERE / "README.md") as temporary:
        temporary.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
