"""Records the workloads and general traffic on SmolLM2, and writes the digests of the prompts.

    python -m tools.workloads record build/smollm2 CORPUS recipes/smollm2/traffic --dtype bfloat16
    python -m tools.workloads digests CORPUS

Rerun `record` to resume. `--minutes` stops it at the end of a part.
"""

import argparse
import math
import sys
import time
from pathlib import Path

from outrider.common.errors import OutriderError
from outrider.common.files import write_json
from tools.workloads.record import parts_of, record, recording_server
from tools.workloads.sessions import until
from tools.workloads.workloads import DIGESTS, WORKLOADS, digest, planned


def parser() -> argparse.ArgumentParser:
    commands = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = commands.add_subparsers(dest="command", required=True)
    recorder = verbs.add_parser("record")
    recorder.add_argument("target", type=Path, help="the checkpoint (make smollm2)")
    recorder.add_argument("corpus", type=Path)
    recorder.add_argument("out", type=Path, help="gets a folder for each workload")
    recorder.add_argument("--workload", choices=WORKLOADS, help="only this one")
    recorder.add_argument(
        "--minutes", type=float, default=math.inf, help="begin no part after them"
    )
    recorder.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    recorder.add_argument(
        "--responses", type=int, help="a trial: about so many responses of each workload"
    )
    digests = verbs.add_parser("digests")
    digests.add_argument("corpus", type=Path)
    return commands


def main() -> None:
    args = parser().parse_args()
    if args.command == "digests":
        values = {
            name: digest(workload, workload.sessions(args.corpus))
            for name, workload in WORKLOADS.items()
        }
        write_json(DIGESTS, values)
        return
    deadline = time.monotonic() + 60 * args.minutes
    names = [args.workload] if args.workload else list(WORKLOADS)
    sessions = {name: planned(name, args.corpus) for name in names}
    args.out.mkdir(parents=True, exist_ok=True)
    log = args.out / ".server.log"
    with recording_server(args.target, args.dtype, log) as server:
        for name in names:
            chosen = until(sessions[name], args.responses) if args.responses else sessions[name]
            parts = parts_of(name, chosen, args.out)
            if not record(WORKLOADS[name], parts, server, deadline):
                print(f"{name}: not complete; rerun the command to resume", flush=True)
    log.unlink()


if __name__ == "__main__":
    try:
        main()
    except OutriderError as error:
        sys.exit(str(error))
