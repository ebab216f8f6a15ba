"""Draft parity: share of equal draft tokens of trainer and engine, by depth.

python benchmarks/parity.py [--run runs/resume_screening] [--prompts 40] [--k 5]
"""

import argparse
import json
from pathlib import Path

from outrider.data.on_policy.quarantine import load_parts
from outrider.data.sequences import load_sequences
from outrider.eval.replay.draft_parity import engine_parity
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.speculators.config import ParityConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=Path("runs/resume_screening"))
    parser.add_argument("--prompts", type=int, default=40)
    parser.add_argument("--k", type=int, default=5)
    parser.add_argument("--anchors", type=int, default=1000)
    args = parser.parse_args()
    heldout = load_parts(args.run / "split", args.run / "features")["heldout"][: args.prompts]
    rows = load_sequences(args.run / "traffic" / "sequences", heldout)
    prompts = [row["token_ids"][: row["completion_start"]] for row in rows]
    target = TargetConfig()
    speculators = {"base": target.directory(), "custom": args.run / "speculator"}
    parity = ParityConfig(max_tokens=200, anchors=args.anchors)
    for name, found in engine_parity(
        target, EngineConfig(), speculators, args.k, prompts, parity
    ).items():
        print(json.dumps({"speculator": name, **found}))


if __name__ == "__main__":
    main()
