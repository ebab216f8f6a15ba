"""How much starts of one engine differ in speed, without speculation.

    python -m benchmarks.starts --starts 6 --prompts 8

One server stays up as the reference; the others start and stop one after another. Every request is
sent to both in turn and costs CPU seconds, so that other processes matter little. A start's value
is the trimmed mean of its log ratios. What their variance has above that of the requests is the
variance of starts. The last line of stdout is JSON; `most` is its upper 95 % limit.
"""

import argparse
import json
import math
import tempfile
from pathlib import Path

import numpy as np
import psutil
from scipy.stats import chi2

from outrider.eval.stats.speed_ratio import trimmed_mean
from outrider.serving.client import Sampling, complete
from outrider.serving.config import EngineConfig
from outrider.serving.server import Server
from tests.gpu.inputs import NANO, logged_prompts


def cpu_s(server: Server) -> float:
    """CPU time that the server's processes have taken; other processes are not in it."""
    own = psutil.Process(server._child.process.pid)
    times = [each.cpu_times() for each in (own, *own.children(recursive=True))]
    return sum(each.user + each.system for each in times)


def cost(server: Server, prompt: list[int], tokens: int) -> float:
    """CPU seconds of one greedy request without a warm prefix."""
    server.reset_prefix_cache()
    before = cpu_s(server)
    complete(server.url, server.model_name, [prompt], Sampling(0.0, 1.0), tokens, 1)
    return cpu_s(server) - before


def main() -> None:
    """Prints a line of each start, then one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=6)
    parser.add_argument("--prompts", type=int, default=8, help="each is sent twice to both")
    parser.add_argument("--tokens", type=int, default=64)
    options = parser.parse_args()
    engine = EngineConfig(mode="eager", max_num_seqs=4, max_model_len=1024, kv_cache_gb=0.25)
    prompts, found = logged_prompts(options.prompts), []
    with (
        tempfile.TemporaryDirectory() as folder,
        Server(NANO, engine, log_path=Path(folder) / "reference.log") as reference,
    ):
        for number in range(options.starts):
            with Server(NANO, engine, log_path=Path(folder) / f"{number}.log") as other:
                logs = []
                for place, prompt in enumerate([*prompts[:2], *prompts * 2]):  # two warm up
                    pair = (reference, other)[:: -1 if place % 2 else 1]
                    taken = {each: cost(each, prompt, options.tokens) for each in pair}
                    logs.append(math.log(taken[other] / taken[reference]))
                found.append(trimmed_mean(np.array(logs[2:]), 0.6827))
            print(f"start {number}: {found[-1][0]:+.4f} +- {found[-1][1]:.4f}", flush=True)
    values, errors = np.array(found).T
    variance, degrees = values.var(ddof=1), len(values) - 1
    between = math.sqrt(max(variance - (errors**2).mean(), 0.0))
    most = math.sqrt(degrees * variance / chi2.ppf(0.05, degrees))
    print(json.dumps({"starts": len(values), "between": round(between, 4), "most": round(most, 4)}))


if __name__ == "__main__":
    main()
