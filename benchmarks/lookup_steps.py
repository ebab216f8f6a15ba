"""Steps of n-gram lookup by replay against vLLM's own lookups, walked token by token.

    python -m tests.serving.vllm_hooks.v2_on_cpu benchmarks.lookup_steps

For the first responses of each shipped workload, as logged: the steps that replay predicts, and
those of a walk that takes its drafts from vLLM's code, for model runner V1 (`ngram`, and the kernel
of `ngram_gpu`) and V2. The last column walks the drafts of one runner and predicts by the other's
algorithm. V2's kernels run in Triton's interpreter, 10 ms or more for each step of a response.
"""

import argparse
import itertools

import numpy as np

from outrider.eval.replay.lookups import LoggedText, lookup_sums
from outrider.speculators.kinds.ngram import LONGEST, SHORTEST
from outrider.speculators.kinds.protocol import Lookup, Runner
from tests.shipped_traffic import token_ids, with_token_ids
from tests.speculators.kinds.ngram_in_vllm import (
    Propose,
    V1GPULookup,
    V1Lookup,
    V2Lookup,
    walked_steps,
)

WORKLOADS = ("resume_screening", "document_extraction", "social_chat")
CASES = ((3, range(2, 5)), (8, range(1, 4)))
"""Drafts per step and lengths of n-grams: the defaults, and settings that may be chosen."""

MOST_TOKENS = 1024
METHODS: dict[str, tuple[Runner, type[V1Lookup] | type[V1GPULookup] | type[V2Lookup]]] = {
    "V1 ngram": ("v1", V1Lookup),
    "V1 ngram_gpu": ("v1", V1GPULookup),
    "V2": ("v2", V2Lookup),
}


def texts_of(workload: str, count: int) -> list[LoggedText]:
    """The first responses of a workload whose tokens were logged."""
    texts = []
    for row in itertools.islice(with_token_ids(workload), count):
        prompt, completion = token_ids(row)
        texts.append(
            LoggedText(
                sequence_id=row["response"]["id"],
                session="",
                user="",
                token_ids_T=np.array(prompt + completion, np.int32),
                completion_start=len(prompt),
            )
        )
    return texts


def predicted(texts: list[LoggedText], k: int, lengths: range, runner: Runner) -> float:
    """Steps by replay."""
    settings = {SHORTEST: lengths.start, LONGEST: lengths.stop - 1}
    sums = lookup_sums(Lookup("ngram", settings, runner=runner), texts)
    return float(sums.steps_RK[:, k - 1].sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--responses", type=int, default=60)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS])
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=[*WORKLOADS])
    args = parser.parse_args()
    columns = "| workload | K | n-grams | lookup | steps, walked | replayed | difference |"
    print(columns, "tokens per step | by the other algorithm |")
    print("|---" * 9 + "|")
    for workload, (k, lengths) in itertools.product(args.workloads, CASES):
        texts = texts_of(workload, args.responses)
        rows = [(text.token_ids_T.tolist(), text.completion_start) for text in texts]
        tokens = sum(text.anchors for text in texts)
        by_runner = {"v1": predicted(texts, k, lengths, "v1")}
        by_runner["v2"] = predicted(texts, k, lengths, "v2")
        for name in args.methods:
            runner, lookup = METHODS[name]
            propose: Propose = lookup(k, lengths, MOST_TOKENS)
            walked = sum(walked_steps(rows, propose))
            replayed = by_runner[runner]
            other = by_runner["v2" if runner == "v1" else "v1"]
            print(
                f"| {workload} | {k} | {lengths.start} to {lengths.stop - 1} | {name} | {walked:,}"
                f" | {replayed:,.0f} | {100 * (replayed / walked - 1):+.2f} %"
                f" | {tokens / walked:.3f} | {100 * (other / walked - 1):+.2f} % |",
                flush=True,
            )


if __name__ == "__main__":
    main()
