"""Acceptance length by common estimators against exact replay.

    train-speculator --recipe resume_screening.yaml --stages ingest,split
    python -m benchmarks.estimators         # computes states and a speculator first where missing

All estimators use the same drafts of the same held-out responses, greedy and drawn, k = the trained
depth. The chain (speculators/acceptance.py) agrees with vLLM's counters to a fraction of a percent;
every other estimator is a shortcut over the same acceptances.

Shapes: R responses, A anchors (padded), K depth; a_RAK is the acceptance of draft j after anchor t,
0 past the end of the response.
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.states import one_epoch, write_states
from outrider.common.files import read_json
from outrider.data.features.feature_store import FeatureStore
from outrider.data.sequences import load_sequences
from outrider.eval.replay.replay import acceptances, batches, load_replayed
from outrider.eval.stats.clusters import clustered
from outrider.serving.config import TargetConfig
from outrider.speculators.acceptance import pad_anchors, replay_chain
from outrider.speculators.config import SpeculatorConfig
from outrider.training.distributed.launch import train

DEPTH = 5
CUTS = (32, 64, 128)
"""Lengths at which responses are cut, as by max_tokens."""


def accepted(
    speculator_dir: Path, target: Path, store: FeatureStore, rows: list[Any], probabilistic: bool
) -> tuple[Tensor, Tensor]:
    """a_RAK at the requests' own sampling, and the anchors of each response."""
    model = load_replayed(speculator_dir, target, "float32")
    flat, anchors = [], []
    for batch in batches(store, rows, None, model.spec):
        a_NK, anchors_R = acceptances(model, batch, DEPTH, probabilistic)
        flat.append(a_NK)
        anchors.append(anchors_R)
    anchors_R = torch.cat(anchors)
    return pad_anchors(torch.cat(flat), anchors_R), anchors_R


def chain(a_RAK: Tensor, anchors_R: Tensor) -> float:
    """Exact replay: delivered tokens over expected steps, pooled."""
    return float(replay_chain(a_RAK, anchors_R).acceptance_length()[-1])


def mean_of_ratios(a_RAK: Tensor, anchors_R: Tensor) -> float:
    """Each response's acceptance length, averaged."""
    return float((anchors_R / replay_chain(a_RAK, anchors_R).steps_RK[:, -1]).mean())


def every_token(a_RAK: Tensor, anchors_R: Tensor) -> float:
    """1 + accepted drafts, averaged as if a step started at every token (teacher forcing)."""
    inside_RA = torch.arange(a_RAK.shape[1])[None] < anchors_R[:, None]
    return float(1 + a_RAK.cumprod(dim=-1).sum(dim=-1)[inside_RA].mean())


def marginal_rates(a_RAK: Tensor, anchors_R: Tensor) -> list[float]:
    """alpha_j: acceptance of draft j given the logged tokens before it, over all tokens."""
    index_A, rates = torch.arange(a_RAK.shape[1]), []
    for j in range(1, a_RAK.shape[2] + 1):
        inside_RA = index_A[None] + j <= anchors_R[:, None]
        rates.append(float(a_RAK[:, :, j - 1][inside_RA].mean()))
    return rates


def product_of_marginals(a_RAK: Tensor, anchors_R: Tensor) -> float:
    """1 + sum over j of alpha_1 ... alpha_j, as if positions were independent."""
    return float(1 + np.cumprod(marginal_rates(a_RAK, anchors_R)).sum())


def geometric(a_RAK: Tensor, anchors_R: Tensor) -> float:
    """(1 - alpha^(k+1)) / (1 - alpha), as if every draft had the first one's rate."""
    alpha = marginal_rates(a_RAK, anchors_R)[0]
    return (1 - alpha ** (a_RAK.shape[2] + 1)) / (1 - alpha)


def past_the_end(a_RAK: Tensor, anchors_R: Tensor, cut: int) -> tuple[float, float]:
    """Acceptance length of responses cut after `cut` tokens: delivered, and by the counters.

    The counters' form, 1 + accepted / steps, includes accepted drafts past the cut.
    """
    long_R = anchors_R >= cut - 1 + a_RAK.shape[2]  # the tokens past the cut are known
    steps_R = torch.full_like(anchors_R[long_R], cut - 1)  # as many anchors as delivered tokens
    cut_chain = replay_chain(a_RAK[long_R][:, : cut - 1], steps_R)
    visits_RA = cut_chain.visits_RAK[:, :, -1]
    counted = (
        visits_RA * a_RAK[long_R][:, : cut - 1].cumprod(dim=-1).sum(dim=-1)
    ).sum() / visits_RA.sum()
    return float(cut_chain.acceptance_length()[-1]), float(1 + counted)


ESTIMATORS: dict[str, Callable[[Tensor, Tensor], float]] = {
    "exact replay: the chain, pooled": chain,
    "mean of the responses' ratios": mean_of_ratios,
    "every token as a step's start": every_token,
    "product of marginal rates": product_of_marginals,
    "geometric series of the first draft's rate": geometric,
}


def table(of: dict[str, tuple[Tensor, Tensor]]) -> list[str]:
    """Acceptance length by each estimator, and its error."""
    lines = ["| estimator | base | custom | custom / base |", "|---|---|---|---|"]
    true = {variant: chain(*pair) for variant, pair in of.items()}
    gain = true["custom"] / true["base"]
    for name, estimator in ESTIMATORS.items():
        found = {variant: estimator(*pair) for variant, pair in of.items()}
        ratio = found["custom"] / found["base"]
        cells = [
            f"{found[variant]:.3f} ({found[variant] / true[variant] - 1:+.1%})" for variant in found
        ]
        lines.append(f"| {name} | {' | '.join(cells)} | {ratio:.3f} ({ratio / gain - 1:+.1%}) |")
    return lines


def first_draft(of: dict[str, tuple[Tensor, Tensor]]) -> list[str]:
    """Acceptance of draft j where the engine offers it, and averaged over all tokens."""
    lines = [
        "| acceptance of draft | " + " | ".join(str(j) for j in range(1, DEPTH + 1)) + " |",
        "|---" * (DEPTH + 1) + "|",
    ]
    for variant, (a_RAK, anchors_R) in of.items():
        found = replay_chain(a_RAK, anchors_R)
        offered_K = (
            found.accepted_RKK[:, -1].sum(dim=0) / found.offered_RKK[:, -1].sum(dim=0)
        ).tolist()
        for name, rates in (
            ("offered, by the chain", offered_K),
            ("every token", marginal_rates(a_RAK, anchors_R)),
        ):
            lines.append(
                f"| {variant}, {name} | " + " | ".join(f"{rate:.3f}" for rate in rates) + " |"
            )
    return lines


def cuts(of: dict[str, tuple[Tensor, Tensor]]) -> list[str]:
    """Effect of counting past the end, by response length."""
    lines = [
        "| responses cut after | base, delivered / counters | custom, delivered / counters |",
        "|---|---|---|",
    ]
    for cut in CUTS:
        cells = []
        for a_RAK, anchors_R in of.values():
            delivered, counters = past_the_end(a_RAK, anchors_R, cut)
            cells.append(f"{delivered:.3f} / {counters:.3f} ({counters / delivered - 1:+.1%})")
        lines.append(f"| {cut} tokens | {' | '.join(cells)} |")
    return lines


def intervals(
    of: dict[str, tuple[Tensor, Tensor]], sessions: list[str], samples: int = 5000
) -> list[str]:
    """95 % interval of custom / base, resampled in three ways."""
    steps = {variant: replay_chain(*pair).steps_RK[:, -1].numpy() for variant, pair in of.items()}
    tokens_R = of["base"][1].double().numpy()
    sums_RM = np.stack([tokens_R, steps["base"], steps["custom"]], axis=1)

    def ratio(s: np.ndarray) -> np.ndarray:
        return s[..., 1] / s[..., 2]

    paired = clustered(sums_RM, sessions, ratio)
    alone = clustered(sums_RM, range(len(sums_RM)), ratio)
    # Unpaired: as if base and custom were measured on different responses.
    random, drawn = np.random.default_rng(0), []
    _, number_R = np.unique(sessions, return_inverse=True)
    by_session = np.zeros((number_R.max() + 1, 3))
    np.add.at(by_session, number_R, sums_RM)
    for _ in range(samples):
        b, c = (
            by_session[random.integers(len(by_session), size=len(by_session))].sum(axis=0)
            for _ in range(2)
        )
        drawn.append((c[0] / c[2]) / (b[0] / b[1]))
    low, high = np.quantile(drawn, [0.025, 0.975])
    rows = [
        ("paired, over sessions", paired.low, paired.high),
        ("paired, over responses", alone.low, alone.high),
        ("unpaired, over sessions", low, high),
    ]
    lines = ["| interval of custom / base | | width |", "|---|---|---|"]
    return lines + [
        f"| {name} | {low:.3f} to {high:.3f} | {high - low:.3f} |" for name, low, high in rows
    ]


def speculator(run: Path, target: Path, rows: dict[str, Any], parts: dict[str, list[str]]) -> Path:
    """A speculator trained on `parts`; training is not repeated."""
    work = run / "estimators"
    if not (work / "speculator" / "config.json").is_file():
        sampling = {name: (row["temperature"], row["top_p"]) for name, row in rows.items()}
        config = SpeculatorConfig(depth=DEPTH)
        train(
            target,
            run / "states",
            sampling,
            parts,
            config,
            one_epoch(),
            work / "training",
            work / "speculator",
            work,
        )
    return work / "speculator"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--run", type=Path, default=Path("runs/resume_screening"), help="a run whose split is done"
    )
    parser.add_argument("--trained", type=int, default=160, help="training sequences of custom")
    parser.add_argument("--measured", type=int, default=100, help="held-out sequences, at most")
    args = parser.parse_args()
    target, tables = TargetConfig().directory(), args.run / "traffic" / "sequences"
    split = read_json(args.run / "split" / "parts.json")
    parts = {"train": split["train"][: args.trained], "validation": split["validation"][:20]}
    heldout = split["heldout"][: args.measured]
    needed = [*parts["train"], *parts["validation"], *heldout]
    write_states(tables, needed, args.run / "states")
    store = FeatureStore.open(args.run / "states")
    columns = ["sequence_id", "session", "temperature", "top_p"]
    rows = {
        row["sequence_id"]: row for row in load_sequences(tables, needed).select_columns(columns)
    }
    custom = speculator(args.run, target, rows, parts)
    # `batches` drops responses of one token: they have no step.
    measured = []
    for batch in batches(store, [rows[name] for name in heldout], None):
        measured += [rows[response.sequence_id] for response in batch]
    sessions = [row["session"] for row in measured]
    print(f"{len(measured)} responses, {len(set(sessions))} sessions, k = {DEPTH}")
    for probabilistic in (False, True):
        of = {
            name: accepted(path, target, store, measured, probabilistic)
            for name, path in (("base", target), ("custom", custom))
        }
        drafts = "drawn" if probabilistic else "greedy"
        print(f"\n## {drafts} drafts, {int(of['base'][1].sum())} tokens\n")
        for lines in (table(of), first_draft(of), cuts(of), intervals(of, sessions)):
            print("\n".join(lines), end="\n\n")


if __name__ == "__main__":
    main()
