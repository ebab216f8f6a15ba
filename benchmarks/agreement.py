"""Exact replay against engine counters, for every k, sampling and speculator.

    outrider train resume_screening.yaml --stages ingest,split,capture,train
    python -m benchmarks.agreement [--run runs/resume_screening] [--requests 200]

One engine answers the held-out prompts in every setting: base and custom, k = 1..5, greedy and
sampled. Drafter weights and k are swapped between settings. The states of the responses are
captured and replayed, and the expected number of steps is compared with the engine's. The time of
replay is compared with that of serving one k and all k, since one replay pass covers every k.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

from outrider.data.features.capture import capture_ids
from outrider.data.features.feature_store import FeatureStore
from outrider.data.on_policy.check import load_parts
from outrider.data.sequences import load_sequences
from outrider.eval.replay.replay import replay
from outrider.eval.replay.sums import length_at
from outrider.eval.results.parts import interval
from outrider.serving.client import Sampling
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.engine import Engine, open_engine
from outrider.serving.speculator import Drafting, Speculator
from outrider.serving.vllm_hooks.draft_recorder import DRAFT_EXTENSION

DEPTH = 5
REGIMES = {"greedy": Sampling(0.0, 1.0), "sampled": Sampling(0.6, 0.95)}


def serve(
    engine: Engine, prompts: list[list[int]], k: int, sampling: Sampling, max_tokens: int
) -> dict[str, Any]:
    """Answers every prompt with k drafts per step."""
    from vllm import SamplingParams

    lookup = engine.llm.llm_engine.engine_core.engine_core.scheduler.dynamic_sd_lookup
    lookup[:] = [k] * len(lookup)
    before = _counters(engine)
    began = time.perf_counter()
    outputs = engine.llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts],
        SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=max_tokens,
            detokenize=False,
        ),
        use_tqdm=False,
    )
    seconds = time.perf_counter() - began
    counted = {name: value - before[name] for name, value in _counters(engine).items()}
    return {
        "token_ids": [list(o.outputs[0].token_ids) for o in outputs],
        "seconds": seconds,
        **counted,
    }


def _counters(engine: Engine) -> dict[str, int]:
    names = {
        "vllm:spec_decode_num_drafts": "drafts",
        "vllm:spec_decode_num_accepted_tokens": "accepted",
    }
    return {names[m.name]: m.value for m in engine.llm.get_metrics() if m.name in names}


def measure(run: Path, requests: int, max_tokens: int, cores: str) -> None:
    """Serves, captures and replays every setting; prints the table."""
    target = TargetConfig()
    speculators = {"base": target.directory(), "custom": run / "speculator"}
    config = EngineConfig(
        max_model_len=2048,
        max_num_seqs=8,
        kv_cache_gb=1.0,
        environment={"VLLM_CPU_OMP_THREADS_BIND": cores},
    )
    heldout = load_parts(run / "split", run / "features")["heldout"]
    room = config.max_model_len - max_tokens - DEPTH - 1
    table = [
        row
        for row in load_sequences(run / "traffic" / "sequences", heldout)
        if row["completion_start"] < room
    ]
    table = table[:requests]
    prompts = [list(row["token_ids"][: row["completion_start"]]) for row in table]
    sessions = [row["session"] for row in table]
    states = run / "agreement"
    served: dict[tuple[str, str, int], dict[str, Any]] = {}
    # The scheduler must run in this process, because `serve` changes its k.
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    drafting = Drafting(
        Speculator.from_name(run / "speculator"),
        DEPTH,
        k_per_batch_size=[(1, config.max_num_seqs, DEPTH)],
    )
    with open_engine(target, config, drafting, extension=DRAFT_EXTENSION) as engine:
        for variant, directory in speculators.items():
            engine.swap(directory)
            serve(engine, prompts[:8], k=DEPTH, sampling=REGIMES["greedy"], max_tokens=32)
            for regime, sampling in REGIMES.items():
                for k in range(1, DEPTH + 1):
                    cell = serve(engine, prompts, k=k, sampling=sampling, max_tokens=max_tokens)
                    served[variant, regime, k] = cell
                    print(variant, regime, k, f"{cell['seconds']:.0f} s", flush=True)
        rows = {}
        for (variant, regime, k), cell in served.items():
            for number, ids in enumerate(cell["token_ids"]):
                name = f"{variant}-{regime}-{k}-{number}"
                rows[name] = ([*prompts[number], *ids], len(prompts[number]))
        began = time.perf_counter()
        capture_ids(engine, [(name, ids, start) for name, (ids, start) in rows.items()], states)
        captured = time.perf_counter() - began
    store = FeatureStore.open(states)
    replayed = 0.0
    print("| speculator | sampling | k | engine's steps | replay's | difference", end="")
    print(" | acceptance, engine | replay [95 %] |\n|---|---|---|---|---|---|---|---|")
    for (variant, regime, k), cell in served.items():
        responses = [
            {"sequence_id": f"{variant}-{regime}-{k}-{number}", "session": session}
            for number, session in enumerate(sessions)
        ]
        began = time.perf_counter()
        sums = replay(
            speculator=speculators[variant],
            target_dir=target.directory(),
            feature_store=store,
            rows=responses,
            depth=DEPTH,
            draft_sample_method="greedy",
            sampling=REGIMES[regime],
        )
        replayed += time.perf_counter() - began
        steps = sums.steps_RK[:, k - 1].sum()
        tokens = sums.tokens_R.sum()
        counted = cell["drafts"]
        print(
            f"| {variant} | {regime} | {k} | {counted:,} | {steps:,.0f} |"
            f" {steps / counted - 1:+.2%} | {tokens / counted:.3f} |"
            f" {interval(length_at(sums, k), 3)} |"
        )
    whole = sum(cell["seconds"] for cell in served.values())
    print(
        f"\n{len(prompts)} requests in each of {len(served)} settings: served in {whole:.0f} s,"
        f" captured in {captured:.0f} s, replayed in {replayed:.0f} s."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=Path("runs/resume_screening"))
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=400)
    parser.add_argument(
        "--cores", default="auto", help="of the engine, as VLLM_CPU_OMP_THREADS_BIND"
    )
    args = parser.parse_args()
    measure(args.run, args.requests, args.max_tokens, args.cores)


if __name__ == "__main__":
    main()
