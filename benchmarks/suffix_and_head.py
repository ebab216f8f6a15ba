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
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from outrider.data.features.feature_store import FeatureStore
from outrider.data.sequences import load_sequences
from outrider.eval.replay.heldout_replay import COLUMNS
from outrider.eval.replay.replay import (
    NO_TOKEN,
    Response,
    acceptances,
    batches,
    load_replayed,
    unroll_responses,
)
from outrider.pipeline.run_dir import RunDirectory
from outrider.pipeline.stages.sources import parts_in_use
from outrider.speculators.acceptance import pad_anchors, replay_chain
from outrider.speculators.kinds.weightless import DEPTH, fixed_cache, write_history


def looked_up(cache: object, response: Response, depth: int) -> tuple[Tensor, Tensor]:
    """Whether each draft of suffix lookup equals the log [A, K], and its scores [A]."""
    ids_T, first = response.states.token_ids.numpy(), response.states.completion_start
    anchors = len(ids_T) - 1 - first
    equal_AK, score_A = np.zeros((anchors, depth)), np.zeros(anchors)
    padded = np.append(ids_T, [NO_TOKEN] * depth)
    cache.start_request("replayed", ids_T[:first])
    for anchor, end in enumerate(range(first + 1, len(ids_T))):
        cache.add_active_response("replayed", ids_T[end - 1 : end])
        recent_T = ids_T[max(end - DEPTH, 0) : end]
        found = cache.speculate("replayed", recent_T, max_spec_tokens=depth)
        drafts = np.array(found.token_ids, np.int64)
        equal_AK[anchor, : len(drafts)] = drafts == padded[end : end + len(drafts)]
        score_A[anchor] = found.score
    cache.stop_request("replayed")
    return torch.from_numpy(equal_AK), torch.from_numpy(score_A)


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
    run, depth = RunDirectory(args.run.resolve()), args.depth
    parts = parts_in_use(run)
    train = load_sequences(run.sequences, parts["train"])
    history = run.root / "evaluation" / "steps" / "history.npz"
    responses = zip(train["token_ids"], train["completion_start"], strict=True)
    write_history(history, [ids[start:] for ids, start in responses])
    cache = fixed_cache(str(history))

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
        found = [looked_up(cache, response, depth) for response in batch]
        lookup_NK, score_N = (torch.cat(each) for each in zip(*found, strict=True))

        rules = {"head": a_NK, "suffix lookup": lookup_NK}
        for factor in args.factor:
            above_N = score_N > factor * expected(confidence_NK)
            rules[f"by score, factor {factor}"] = torch.where(above_N[:, None], lookup_NK, a_NK)
        better_N = expected(lookup_NK) > expected(a_NK)
        rules["best of both"] = torch.where(better_N[:, None], lookup_NK, a_NK)
        for name, each in rules.items():
            of_rule.setdefault(name, []).append(pad_anchors(each.double(), anchors_R))
        anchors.append(anchors_R)
    for name, batches_RAK in of_rule.items():
        chains = [replay_chain(a, n) for a, n in zip(batches_RAK, anchors, strict=True)]
        tokens = sum(chain.tokens_R.sum() for chain in chains)
        steps_K = sum(chain.steps_RK.sum(0) for chain in chains)
        print(f"{name:22}", *(f"{value:.3f}" for value in (tokens / steps_K).tolist()))


if __name__ == "__main__":
    main()
