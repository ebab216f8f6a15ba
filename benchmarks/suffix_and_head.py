"""Would suffix lookup and a head together draft better than either alone?

    outrider train smollm2/candidate_profiles ... --stages ingest,split,capture,train
    python -m benchmarks.suffix_and_head runs/candidate_profiles build/smollm2 --depth 5

Exact replay of the held-out responses. At each step, the drafts are suffix lookup's if its score
exceeds `--factor` times the number of accepted drafts that the head expects, the sum over j of its
probability for drafts 1 to j. `best of both` takes at each step the one that the target accepts
further, which a server cannot know.

vLLM cannot do this: it runs one method per server.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.data.features.feature_store import FeatureStore
from outrider.data.sequences import load_sequences
from outrider.eval.replay.heldout_replay import COLUMNS
from outrider.eval.replay.replay import (
    acceptances,
    batches,
    load_replayed,
    text_acceptances,
    unroll_responses,
)
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.sources import parts_in_use
from outrider.speculators.acceptance import pad_anchors, replay_chain
from outrider.speculators.kinds.suffix import HISTORY, SuffixLookup, fixed_cache, write_history


class ScoredLookup(SuffixLookup):
    """Suffix lookup that keeps the score of each anchor's drafts."""

    def __init__(self) -> None:
        self.scores: list[float] = []

    def matches(self, token_ids_T: NDArray[np.int32], first: int, k: int) -> Iterator[Any]:
        """As suffix lookup, one anchor after another."""
        for match in super().matches(token_ids_T, first, k):
            self.scores.append(match.score)
            yield match


def expected(a_AK: Tensor) -> Tensor:
    """Expected accepted drafts per step."""
    return a_AK.cumprod(1).sum(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--depth", type=int, default=5)
    parser.add_argument("--factor", type=float, nargs="+", default=[0.8, 1.0, 1.2, 1.4])
    args = parser.parse_args()
    run = RunDirectory(args.run.resolve())
    depth = args.depth
    parts = parts_in_use(run)
    train = load_sequences(run.sequences, parts["train"])
    responses = zip(train["token_ids"], train["completion_start"], strict=True)
    with tempfile.TemporaryDirectory() as scratch:
        os.environ[HISTORY] = f"{scratch}/history.npz"
        write_history(Path(os.environ[HISTORY]), [ids[start:] for ids, start in responses])
        fixed_cache(os.environ[HISTORY])  # is read once
    lookup = ScoredLookup()

    model = load_replayed(run.speculator, args.target, "float32")
    head = model.drafter.head(model.ends)
    rows = load_sequences(run.sequences, parts["heldout"]).select_columns(COLUMNS)
    of_rule: dict[str, list[Tensor]] = {}
    anchors = []
    for batch in batches(FeatureStore.open(run.features), list(rows), None):
        a_NK, anchors_R = acceptances(model, False, batch, depth)
        with torch.no_grad():
            states = unroll_responses(model, batch, depth).states[:depth]
            confidence_NK = torch.stack([head.logits(u).softmax(-1).amax(-1) for u in states], 1)
        lookup_NK, _ = text_acceptances(lookup, batch, depth)
        score_N = torch.tensor(lookup.scores, dtype=torch.float64)
        lookup.scores.clear()

        rules = {"head": a_NK, "suffix lookup": lookup_NK}
        for factor in args.factor:
            above_N = score_N > factor * expected(confidence_NK)
            rules[f"by score, factor {factor}"] = torch.where(above_N[:, None], lookup_NK, a_NK)
        better_N = expected(lookup_NK) > expected(a_NK)
        rules["best of both"] = torch.where(better_N[:, None], lookup_NK, a_NK)
        for name, accepted_NK in rules.items():
            of_rule.setdefault(name, []).append(pad_anchors(accepted_NK.double(), anchors_R))
        anchors.append(anchors_R)
    for name, batches_RAK in of_rule.items():
        chains = [replay_chain(a, n) for a, n in zip(batches_RAK, anchors, strict=True)]
        tokens = sum(chain.tokens_R.sum() for chain in chains)
        steps_K = sum(chain.steps_RK.sum(0) for chain in chains)
        print(f"{name:22}", *(f"{value:.3f}" for value in (tokens / steps_K).tolist()))


if __name__ == "__main__":
    main()
