"""A tiny target, its speculator and stored responses, for tests of exact replay.

case = replay_case(tmp_path)      # target, speculator, ends, store, rows
"""

from types import SimpleNamespace
from typing import Any

import torch

from outrider.eval.replay.replay import replay
from outrider.eval.replay.sums import ReplaySums
from outrider.speculators.checkpoints.target_ends import load_target_ends
from outrider.speculators.features import FINAL_NORM, SequenceStates
from outrider.speculators.kinds.mtp.checkpoint import load_mtp
from tests.tiny import HIDDEN, VOCAB, write_tiny_target
from tools.unrolled import unroll

DEPTH = 3
TEMPERATURE, TOP_P, TOP_K = 0.7, 0.9, 8
LENGTHS = [(3, 20), (1, 33), (6, 12), (4, 6), (5, 7), (2, 3)]
"""Tokens of each prompt, and with its response; the last response has no step."""


class Store(dict):
    """A feature store in memory."""

    def read(self, sequence_id):
        return self[sequence_id]

    def tokens(self, sequence_id):
        return self[sequence_id].token_ids

    def completion_start(self, sequence_id):
        return self[sequence_id].completion_start


def states_of(speculator, ends, tokens, hidden):
    sequence = torch.zeros(1, len(tokens), dtype=torch.long)
    with torch.no_grad():
        return unroll(
            speculator,
            ends,
            token_ids_BT=tokens[None],
            inputs_BTX=hidden[None],
            sequence_BT=sequence,
            position_BT=torch.arange(len(tokens))[None],
            depth=DEPTH,
        )


def replay_case(folder):
    """Writes a tiny target with its speculator, and responses that often contain its drafts."""
    target = write_tiny_target(folder / "target")
    speculator = load_mtp(target).eval()
    ends = load_target_ends(target)
    torch.manual_seed(0)
    store = Store()
    rows = []
    for number, (prompt, length) in enumerate(LENGTHS):
        tokens = torch.randint(VOCAB, (length,))
        hidden = torch.randn(length, HIDDEN).bfloat16()
        for index in range(prompt + 1, length):
            depth = int(torch.randint(DEPTH, ()))
            if index - 2 - depth >= prompt - 1 and torch.rand(()) < 0.8:
                state = states_of(speculator, ends, tokens, hidden.float())[depth][
                    0, index - 2 - depth
                ]
                tokens[index] = int(ends.logits(state).argmax())
        name = f"r{number}"
        store[name] = SequenceStates(tokens.int(), prompt, {FINAL_NORM: hidden})
        rows.append(
            {
                "sequence_id": name,
                "session": f"s{number // 2}",
                "user": f"u{number // 4}",
                "temperature": TEMPERATURE,
                "top_p": TOP_P,
                "top_k": TOP_K,
            }
        )
    return SimpleNamespace(target=target, speculator=speculator, ends=ends, store=store, rows=rows)


def replayed(case: Any, **options: Any) -> ReplaySums:
    """Sums of the case's own speculator on all of its rows."""
    return replay(
        speculator=case.target,
        target_dir=case.target,
        feature_store=case.store,
        rows=case.rows,
        depth=DEPTH,
        **options,
    )
