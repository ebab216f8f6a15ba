"""A capture whose engine computes states from the sequence and records its requests.

python -m tests.data.features.stand_in_capture STORE REQUESTS
"""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import torch

from outrider.data.config import CaptureConfig
from outrider.data.features.capture import capture_ids
from outrider.serving.engine import LoggedRow
from outrider.speculators.features import FeatureSpec, FeatureStream, SequenceStates

SEQUENCES = 400
BATCH_TOKENS = 64
WIDTH = 8


class StandIn:
    """Appends the id of every sequence that it is asked for to a file."""

    config = SimpleNamespace(get_hidden_size=lambda: WIDTH)
    llm = SimpleNamespace(llm_engine=SimpleNamespace(model_config=config))

    def __init__(self, asked: Path) -> None:
        self.asked = asked

    def prefill(
        self,
        rows: Iterable[LoggedRow],
        streams: Sequence[str],
        batch_tokens: int,
        positions: int | None,
    ) -> Iterator[tuple[LoggedRow, SequenceStates]]:
        for row in rows:
            with self.asked.open("a") as log:
                log.write(row.row_id + "\n")
            time.sleep(0.002)
            token_ids = torch.tensor(row.token_ids)
            state = token_ids.float()[:, None].expand(-1, WIDTH).bfloat16()
            by_name = {name: state + index for index, name in enumerate(streams)}
            yield row, SequenceStates(token_ids, row.completion_start, by_name)


def main(directory: Path, asked: Path) -> None:
    rows = [
        (f"0-{index}", list(range(index, index + 3 + index % 5)), 1) for index in range(SEQUENCES)
    ]
    settings = CaptureConfig(batch_tokens=BATCH_TOKENS).model_copy(
        update={"shard_megabytes": 1200 / 2**20}
    )
    spec = FeatureSpec((FeatureStream("layer_2", WIDTH),))
    capture_ids(
        engine=StandIn(asked), rows=rows, out_dir=directory, capture=settings, features=spec
    )


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
