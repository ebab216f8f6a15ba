"""Speed and findings of the privacy check, next to the bare tokenizer.

    python benchmarks/privacy.py [LOG ...]          # default: the embedded traffic

One process, CPU time, the same texts for all columns.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from outrider.data.config import PrivacyConfig
from outrider.data.exchange import Exchange
from outrider.data.formats import read_exchanges
from outrider.data.ingest.sources import log_files
from outrider.data.privacy.guard import PrivacyGuard
from outrider.data.tokenize.tokens import SequenceBuilder
from outrider.serving.config import TargetConfig

EMBEDDED = Path(__file__).resolve().parent.parent / "recipes" / "nano_r1" / "traffic"


def seconds(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return time.process_time() - begin


def texts(exchange: Exchange) -> Iterable[str]:
    yield from (message["content"] or "" for message in exchange.messages or [])
    yield from (exchange.reasoning or "", exchange.content or "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("logs", nargs="*", default=sorted(map(str, EMBEDDED.glob("*.jsonl.gz"))))
    args = parser.parse_args()
    encode = SequenceBuilder(TargetConfig().directory()).tokenizer.encode
    print(
        "| log | texts | characters | found | report, Mchar/s | surrogate, Mchar/s"
        " | tokenizer, Mchar/s |"
    )
    print("|---|---|---|---|---|---|---|")
    for log in args.logs:
        rows = [row for row in read_exchanges(log_files(log)) if isinstance(row, Exchange)]
        logged = list(itertools.chain.from_iterable(map(texts, rows)))
        size = sum(map(len, logged))
        tokenizer = seconds(lambda logged=logged: [encode(text) for text in logged])
        cells = []
        for mode in ("report", "surrogate"):
            guard = PrivacyGuard(PrivacyConfig(mode=mode), key=bytes(32))
            guard.apply(rows[0])  # loads the phone number tables
            guard.take_tally()
            spent = seconds(lambda guard=guard, rows=rows: [guard.apply(row) for row in rows])
            cells.append(f"{guard.tally.characters / spent / 1e6:.2f}")
        kinds = ", ".join(f"{name} {count}" for name, count in guard.tally.found.items()) or "none"
        cells.append(f"{size / tokenizer / 1e6:.2f}")
        print(f"| {Path(log).name} | {len(logged)} | {size} | {kinds} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
