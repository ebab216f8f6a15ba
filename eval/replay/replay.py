"""Exact replay: expected engine steps of a speculator for every k.

Reads states from a feature store, unrolls the speculator over several sequences at a time, and
propagates the chain of speculators/acceptance.py. Nothing is served or sampled: the only remaining
noise is the choice of responses.

    sums = replay(speculator_dir, target_dir, FeatureStore.open(features), rows, depth=4)
    sums.acceptance_length()          # k = 1..4, pooled over requests
    compare_replays(base, custom, k=3)        # custom / base, interval over sessions
    replay(Lookup("ngram"), ...)      # from token ids alone (lookups.py), K = 1..24
    replay(CEILING, ...)              # a perfect drafter

Shapes: R responses, K depth, G regions, T tokens of a batch, N anchors, H hidden, X input values of
the drafter per token; those of the chain are in speculators/acceptance.py.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.common.errors import OutriderError
from outrider.data.features.feature_store import FeatureStore
from outrider.eval.replay.lookups import LoggedText, lookup_sums
from outrider.eval.replay.perfect_drafter import PerfectDrafter
from outrider.eval.replay.regions import Regions
from outrider.eval.replay.sums import NOTHING_REPLAYED, ReplaySums, has_steps
from outrider.serving.client import Sampling
from outrider.speculators.acceptance import accept_matrix, pad_anchors, replay_chain
from outrider.speculators.checkpoints.model_config import read_config, read_head_config
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.features import FINAL_NORM, FeatureSpec, FeatureStream, SequenceStates
from outrider.speculators.heads import TargetEnds
from outrider.speculators.kinds import trainable_kind_of
from outrider.speculators.kinds.drafter import Drafter
from outrider.speculators.kinds.protocol import Lookup
from outrider.speculators.unroll import Slots

BATCH_TOKENS = 8192
"""Approximate number of tokens that are unrolled at once."""

CEILING = "ceiling"
"""Name of the perfect drafter, which knows the target's distribution after the logged tokens.

Its greedy draft is the target's most likely token, so no speculator with greedy drafts needs fewer
steps in expectation, except on responses that a grammar or penalties shaped. Like every speculator,
it is replayed on the logged tokens, so a speculator that is almost perfect can exceed it by chance.
Its sampled drafts are drawn from the target's distribution, so all of them are accepted."""


def replay(
    speculator: Path | str | Lookup,
    target_dir: Path,
    feature_store: FeatureStore,
    rows: Iterable[Mapping[str, Any]],
    depth: int,
    *,
    draft_sample_method: str = "greedy",
    sampling: Sampling | None = None,
    dtype: str = "float32",
    by_region: bool = False,
    timed_tokens: int | None = None,
    by_anchor: bool = False,
) -> ReplaySums:
    """Replays `rows` (with `heldout_replay.COLUMNS`); `sampling` overrides the rows' own.

    `user` may be missing. `speculator` is a directory, a lookup, which ignores `depth`, or CEILING.
    Responses of one token have no step and are left out. `by_region` also sums by region, and
    `timed_tokens` adds the regions of the first so many tokens and of the rest. `by_anchor` also
    returns greedy drafts by anchor (`ReplaySums.anchors`). Runs on a GPU if there is one.
    """
    regions = Regions.of_target(target_dir, timed_tokens) if by_region else None
    if isinstance(speculator, Lookup):
        return lookup_sums(speculator, logged_texts(feature_store, rows), regions)
    rule = acceptance_rule(speculator, target_dir, draft_sample_method == "probabilistic", dtype)
    chains = []
    sums_by_region: list[tuple[Tensor, Tensor]] = []
    by_response: list[tuple[list[int], list[int]]] = []
    replayed: list[Mapping[str, Any]] = []
    for batch in replay_batches(feature_store, rows, sampling):
        a_NK, anchors_R, first_N = rule(batch, depth)
        if by_anchor and draft_sample_method == "greedy":
            by_response += _by_response(a_NK, anchors_R, first_N)
        chain = replay_chain(pad_anchors(a_NK, anchors_R), anchors_R)
        chains.append(chain)
        for response, visits_AK in zip(batch, chain.visits_RAK.cpu(), strict=True):
            if regions:
                states = response.states
                sums_by_region.append(
                    regions.sums(states.token_ids, states.completion_start, visits_AK)
                )
        replayed += [response.row for response in batch]
    if not chains:
        raise OutriderError(NOTHING_REPLAYED)

    count = len(replayed)
    tokens_RG = np.zeros((count, 0))
    steps_RGK = np.zeros((count, 0, depth))
    if regions:
        tokens, steps = zip(*sums_by_region, strict=True)
        tokens_RG = torch.stack(tokens).numpy()
        steps_RGK = torch.stack(steps).numpy()
    arrays = {
        name: torch.cat([getattr(chain, name) for chain in chains]).cpu().numpy()
        for name in ("tokens_R", "steps_RK", "accepted_RKK")
    }
    return ReplaySums(
        sequence_ids=[row["sequence_id"] for row in replayed],
        sessions=[row["session"] for row in replayed],
        users=[row.get("user", "") for row in replayed],
        **arrays,
        region_tokens_RG=tokens_RG,
        region_steps_RGK=steps_RGK,
        regions=regions.names if regions else (),
        anchors=by_response,
    )


def _by_response(
    a_NK: Tensor, anchors_R: Tensor, first_N: Tensor
) -> Iterator[tuple[list[int], list[int]]]:
    """Yields each response's accepted greedy drafts, and first probabilities in thousandths."""
    accepted_N = a_NK.cumprod(dim=1).sum(dim=1).long()
    thousandths_N = (1000 * first_N).round().long()
    lengths = anchors_R.tolist()
    pairs = zip(accepted_N.split(lengths), thousandths_N.split(lengths), strict=True)
    for accepted_A, first_A in pairs:
        yield accepted_A.tolist(), first_A.tolist()


def acceptance_rule(
    speculator: Path | str, target_dir: Path, probabilistic: bool, dtype: str
) -> Callable[[Sequence["ReplayResponse"], int], tuple[Tensor, Tensor, Tensor]]:
    """Returns a function (batch, depth) -> (a_NK, anchors_R, first_N), as in `acceptances`."""
    if speculator == CEILING and probabilistic:
        return all_accepted
    model = load_replay_model(speculator, target_dir, dtype)
    return functools.partial(acceptances, model, probabilistic)


@dataclass(frozen=True)
class ReplayModel:
    """A speculator in memory, ready to draft."""

    drafter: Drafter
    ends: TargetEnds
    spec: FeatureSpec
    """States of the target that the drafter reads"""
    device: str


def load_replay_model(speculator: Path | str, target_dir: Path, dtype: str) -> ReplayModel:
    """Loads a speculator with weights, or CEILING, onto the GPU if available."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    number = getattr(torch, dtype)
    ends = load_target_ends(target_dir).to(device=device, dtype=number)
    target_config = read_config(Path(target_dir) / "config.json")
    if speculator == CEILING:
        states = FeatureStream(FINAL_NORM, target_config["hidden_size"])
        return ReplayModel(PerfectDrafter(), ends, FeatureSpec((states,)), device)
    directory = Path(speculator)
    kind = trainable_kind_of(directory)
    drafter = kind.load(directory, target_dir, number).to(device).eval()
    spec = kind.features(read_head_config(directory / "config.json"), target_config)
    return ReplayModel(drafter, ends, spec, device)


@dataclass(frozen=True)
class ReplayResponse:
    """One response with its states and sampling."""

    row: Mapping[str, Any]
    """The response's row in the sequence table"""
    states: SequenceStates
    sampling: Sampling


def replay_batches(
    store: FeatureStore, rows: Iterable[Mapping[str, Any]], sampling: Sampling | None
) -> Iterator[list[ReplayResponse]]:
    """Yields responses of two or more tokens, about BATCH_TOKENS per batch."""
    batch: list[ReplayResponse] = []
    tokens = 0
    for row in rows:
        states = store.read(row["sequence_id"])
        length = len(states.token_ids)
        if not has_steps(length, states.completion_start):
            continue
        # A sequence is never cut: its attention needs all earlier tokens.
        if tokens > 0 and tokens + length > BATCH_TOKENS:
            yield batch
            batch = []
            tokens = 0
        row_sampling = sampling
        if row_sampling is None:
            temperature = float(row["temperature"])
            row_sampling = Sampling(temperature, float(row["top_p"]), row["top_k"])
        batch.append(ReplayResponse(row, states, row_sampling))
        tokens += length
    if batch:
        yield batch


@dataclass(frozen=True)
class UnrolledResponses:
    """Draft states of all anchors, with sequences packed into T slots."""

    states: list[Tensor]
    """u[s] [N, H], which predicts the token s + 1 positions after the anchor"""
    token_ids_BT: Tensor
    hidden_BTH: Tensor
    anchor_N: Tensor
    """Slot of each anchor: the last known token of a step that may start there"""
    response_N: Tensor
    """Index of each anchor's response in the batch"""
    last_N: Tensor
    """Slot of the last token of each anchor's response"""
    anchors_R: Tensor
    """Number of anchors of each response"""


def unroll_responses(
    model: ReplayModel, batch: Sequence[ReplayResponse], depth: int
) -> UnrolledResponses:
    """Drafts `depth` tokens at every anchor; attention stays within a response's sequence."""
    read = [response.states for response in batch]
    lengths = torch.tensor([len(states.token_ids) for states in read])
    starts = lengths.cumsum(0) - lengths
    # The first token of a response is delivered by the prefill.
    first_R = starts + torch.tensor([states.completion_start for states in read])
    sequence_T = torch.repeat_interleave(torch.arange(len(batch)), lengths)
    index_T = torch.arange(len(sequence_T))
    position_T = index_T - starts[sequence_T]
    last_T = (starts + lengths - 1)[sequence_T]
    # A step may start at every token of the response except the last; its chain reads the state one
    # token earlier.
    anchor_N = ((index_T >= first_R[sequence_T]) & (index_T < last_T)).nonzero()[:, 0]
    chain_T = torch.zeros(len(sequence_T), dtype=torch.bool)
    # The unroll counts from the state that a chain reads: its anchor i is the last known token
    # minus one.
    chain_T[anchor_N - 1] = True

    device = model.device
    dtype = model.ends.lm_head_VH.dtype
    token_ids_BT = torch.cat([states.token_ids for states in read]).long()[None].to(device)
    hidden_BTH = torch.cat([states.hidden for states in read])[None].to(device, dtype)
    inputs = [model.spec.inputs(states) for states in read]
    inputs_BTX = hidden_BTH
    # An MTP layer reads the teacher's state itself; a second copy of R1's would take 235 MB per
    # batch.
    if inputs[0] is not read[0].hidden:
        inputs_BTX = torch.cat(inputs)[None].to(device, dtype)
    with torch.no_grad():
        slots = Slots(
            token_ids_BT=token_ids_BT,
            inputs_BTX=inputs_BTX,
            sequence_BT=sequence_T[None].to(device),
            position_BT=position_T[None].to(device),
            anchor_BT=chain_T[None].to(device),
        )
        _, drafted = model.drafter.unroll(model.ends, slots, depth)
    return UnrolledResponses(
        states=drafted,
        token_ids_BT=token_ids_BT,
        hidden_BTH=hidden_BTH,
        anchor_N=anchor_N.to(device),
        response_N=sequence_T[anchor_N].to(device),
        last_N=last_T[anchor_N].to(device),
        anchors_R=(starts + lengths - 1 - first_R).to(device),
    )


def acceptances(
    model: ReplayModel, probabilistic: bool, batch: Sequence[ReplayResponse], depth: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Acceptance probabilities a_NK under each request's sampling; anchor count of each response.

    The anchors are in order, one response after another (`speculators.acceptance`). The third is
    the probability of the most likely first draft at each anchor.
    """
    drafted = unroll_responses(model, batch, depth)
    per_response = torch.tensor(
        [[r.sampling.temperature, r.sampling.top_p, r.sampling.top_k] for r in batch],
        device=model.device,
    )
    temperature_N, top_p_N, top_k_N = per_response[drafted.response_N].unbind(dim=1)
    first_N = torch.zeros(len(drafted.anchor_N), device=model.device)
    a_NK = accept_matrix(
        states=drafted.states,
        head=model.drafter.head(model.ends),
        lm_head_VH=model.ends.lm_head_VH,
        token_ids_BT=drafted.token_ids_BT,
        hidden_BTH=drafted.hidden_BTH,
        row_N=torch.zeros_like(drafted.anchor_N),
        anchor_N=drafted.anchor_N,
        last_N=drafted.last_N,
        temperature_N=temperature_N,
        top_p_N=top_p_N,
        top_k_N=top_k_N,
        probabilistic=probabilistic,
        first_N=first_N,
    )
    return a_NK, drafted.anchors_R, first_N


def all_accepted(batch: Sequence[ReplayResponse], depth: int) -> tuple[Tensor, Tensor, Tensor]:
    """`acceptances` of drafts drawn from the target's distribution: all 1."""
    read = [response.states for response in batch]
    counts = [len(states.token_ids) - 1 - states.completion_start for states in read]
    anchors_R = torch.tensor(counts)
    anchors = int(anchors_R.sum())
    return torch.ones(anchors, depth, dtype=torch.float64), anchors_R, torch.ones(anchors)


def logged_texts(store: FeatureStore, rows: Iterable[Mapping[str, Any]]) -> Iterator[LoggedText]:
    """The token ids of stored sequences."""
    for row in rows:
        name = row["sequence_id"]
        ids = store.tokens(name).numpy()
        yield LoggedText.of(
            {**row, "token_ids": ids, "completion_start": store.completion_start(name)}
        )
