"""States of nano R1 over logged token ids, computed by transformers.

    states = ComputedStates(target_dir, rows, layers=[2, 8, 13])
    replay(head, target_dir, states, rows, depth=5)

They are float32, computed from the bf16 weights without an engine. Captured states differ from them
by bf16 rounding.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import DeepseekV3ForCausalLM

from outrider.speculators.features import FINAL_NORM, SequenceStates, layer_name


class ComputedStates:
    """Final states, and states before `layers`, of sequences by id."""

    def __init__(self, target_dir: Path, rows: Iterable[Mapping[str, Any]], layers: Sequence[int]):
        self.model = DeepseekV3ForCausalLM.from_pretrained(target_dir, dtype=torch.float32).eval()
        self.rows = {row["sequence_id"]: row for row in rows}
        self.layers = layers
        self.done: dict[str, SequenceStates] = {}

    @torch.no_grad()
    def read(self, sequence_id: str) -> SequenceStates:
        """States of one sequence; cached for several speculators."""
        if sequence_id not in self.done:
            row = self.rows[sequence_id]
            token_ids = torch.tensor(row["token_ids"])
            out = self.model.model(token_ids[None], output_hidden_states=True, use_cache=False)
            # hidden_states[i] is the residual stream before layer i.
            streams = {layer_name(index): out.hidden_states[index][0] for index in self.layers}
            self.done[sequence_id] = SequenceStates(
                token_ids=token_ids,
                completion_start=row["completion_start"],
                streams=streams | {FINAL_NORM: out.last_hidden_state[0]},
            )
        return self.done[sequence_id]
