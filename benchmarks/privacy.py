"""What looking for personal data costs and finds, beside the bare tokenizer on the same text; one process, CPU time.

python benchmarks/privacy.py [LOG ...]          # without arguments the embedded traffic
"""

import sys
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
    encode = SequenceBuilder(TargetConfig().directory()).tokenizer.encode
    print(
        "| log | texts | characters | found | report, Mchar/s | surrogate, Mchar/s | tokenizer, Mchar/s |"
    )
    print("|---|---|---|---|---|---|---|")
    for log in sys.argv[1:] or sorted(map(str, EMBEDDED.glob("*.jsonl.gz"))):
        rows = [
            row
            for file in log_files(log)
            for row in read_exchanges(file)
            if isinstance(row, Exchange)
        ]
        said = [text for row in rows for text in texts(row)]
        size = sum(map(len, said))
        tokenizer = seconds(lambda said=said: [encode(text) for text in said])
        cells = []
        for mode in ("report", "surrogate"):
            guard = PrivacyGuard(PrivacyConfig(mode=mode), key=bytes(32))
            guard.apply(rows[0])  # tables of numbers are loaded with the first one
            guard.take_tally()
            spent = seconds(lambda guard=guard, rows=rows: [guard.apply(row) for row in rows])
            cells.append(f"{guard.tally.characters / spent / 1e6:.2f}")
        kinds = ", ".join(f"{name} {count}" for name, count in guard.tally.found.items()) or "none"
        print(
            f"| {Path(log).name} | {len(said)} | {size} | {kinds} | {' | '.join(cells)} | {size / tokenizer / 1e6:.2f} |"
        )


if __name__ == "__main__":
    main()
