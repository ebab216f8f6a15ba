"""Share of later responses that a warm start's draft tokens cover, by the size of the log.

    python -m benchmarks.draft_vocabulary recipes/smollm2/eagle3 recipes/smollm2/traffic/arithmetic

Logs are folders of parts with token ids (tools/workloads). The last fifth of a log's responses is
held out; the draft tokens are chosen from its first ones. Compared are the base's tokens, as many
of the log's most frequent ones, and both mixed by cross-validation, as training does.
"""

import argparse
import gzip
import itertools
import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from outrider.common.files import read_json
from outrider.speculators.draft_vocabulary import chosen_ids, coverage, mixed_ids, token_counts
from outrider.training.plan import COUNTED_PARTS

SIZES = (60, 120, 300, 800)
HELD_OUT = 0.2


def responses_of(log: Path) -> list[Tensor]:
    """The token ids of a log's responses, in the log's order."""
    lines = itertools.chain.from_iterable(
        gzip.decompress(part.read_bytes()).splitlines() for part in sorted(log.glob("*.jsonl.gz"))
    )
    return [
        torch.tensor(choice["token_ids"])
        for line in lines
        for choice in json.loads(line)["response"]["choices"]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("base", type=Path, help="an EAGLE-3 head with a draft vocabulary")
    parser.add_argument("logs", type=Path, nargs="+")
    args = parser.parse_args()
    vocabulary = read_json(args.base / "config.json")["vocab_size"]
    offsets_D = load_file(args.base / "model.safetensors")["d2t"]
    base_ids_D = torch.arange(len(offsets_D)) + offsets_D
    print("| log | responses | base's tokens | most frequent | mixed |\n|---|---|---|---|---|")
    for log in args.logs:
        responses = responses_of(log)
        first_held_out = round(len(responses) * (1 - HELD_OUT))
        held_out_V = token_counts(responses[first_held_out:], vocabulary)
        for size in (size for size in SIZES if size <= first_held_out):
            ends = [size * part // COUNTED_PARTS for part in range(COUNTED_PARTS + 1)]
            counts_FV = torch.stack(
                [
                    token_counts(responses[begin:end], vocabulary)
                    for begin, end in itertools.pairwise(ends)
                ]
            )
            chosen = {
                "base": base_ids_D,
                "most frequent": chosen_ids(counts_FV.sum(0), len(base_ids_D)),
                "mixed": mixed_ids(base_ids_D, counts_FV),
            }
            covered = [f"{coverage(held_out_V, ids_D):.2%}" for ids_D in chosen.values()]
            print(f"| {log.name} | {size} | {' | '.join(covered)} |", flush=True)


if __name__ == "__main__":
    main()
