"""A whole results.json from invented measurements, made by the code that makes the real one from its real ones.

sample_results(custom_speed=1.4)
"""

import itertools
from typing import Any

import numpy as np

from outrider.eval.bench.metrics import counted_acceptance, counted_passes, noise_of, summarise
from outrider.eval.bench.open_loop import rate_row
from outrider.eval.config import EvalConfig
from outrider.eval.context import VERSION
from outrider.eval.evaluate import _replay_results
from outrider.eval.gate import judge
from outrider.eval.lossless.greedy_match import compare_greedy, task_accuracy, text_statistics
from outrider.eval.prediction.choose_k import choose_k
from outrider.eval.prediction.predicted import predict_served
from outrider.eval.replay.replay import ReplaySums
from outrider.eval.replay.slices import sliced
from outrider.serving.step_times import StepTimes

EVALUATION = EvalConfig(bootstrap_samples=200, repeats=3)
K, DEPTH = 3, 4
BURSTS = {"none": 1.0, "base": 2.2, "custom": 2.9}
"""Tokens that a delivery brings."""
QUIET = {"custom_over_base": None, "custom_over_none": None, "base_over_none": None}
"""A machine without noise of its own."""
TIMES = StepTimes(
    {1: [0.01, 0.013, 0.014, 0.017, 0.02], 8: [0.025, 0.03, 0.04, 0.06, 0.08]},
    prompt_token_s=(1e-4, 1.2e-4),
)


def sample_blocks(custom_speed: float = 1.4, mode_speed: float = 1.0) -> list[dict[str, Any]]:
    """Timed blocks in which custom decodes `custom_speed` times as fast as base; speeds drift from repeat to repeat."""
    random, blocks = np.random.default_rng(0), []
    for repeat, concurrency in itertools.product(range(EVALUATION.repeats), EVALUATION.concurrency):
        drift = random.uniform(0.8, 1.2)
        n = EVALUATION.block_requests(concurrency)
        for variant, speed in (
            ("none", 100.0),
            ("base", 130.0 / concurrency**0.2),
            ("custom", 130.0 / concurrency**0.2 * custom_speed),
        ):
            tokens = random.integers(60, 250, n)
            latency = (
                tokens / (speed * mode_speed * drift * random.normal(1, 0.03, n)) * concurrency**0.4
            )
            drafts = int(tokens.sum() / (2.2 if variant == "base" else 2.9))
            rates = (0.7, 0.35, 0.15) if variant == "base" else (0.85, 0.6, 0.45)
            accepted = [int(drafts * rate) for rate in rates]
            blocks.append(
                {
                    "repeat": repeat,
                    "concurrency": concurrency,
                    "variant": variant,
                    "alternated": False,
                    "seconds": float(latency.sum() / concurrency),
                    "output_tokens": int(tokens.sum()),
                    "request_tokens": tokens.tolist(),
                    "request_seconds": latency.tolist(),
                    "request_deliveries": np.ceil((tokens - 1) / BURSTS[variant])
                    .astype(int)
                    .tolist(),
                    "ttft_ms": random.uniform(20, 40, n).tolist(),
                    "tpot_ms": (1000 * latency / tokens).tolist(),
                    "itl_ms": random.uniform(10, 30, 50).tolist(),
                    "steps": sample_steps(
                        concurrency, 0 if variant == "none" else K, 1 / (mode_speed * drift)
                    ),
                    "counters": {
                        "drafts": 0 if variant == "none" else drafts,
                        "accepted_tokens": 0 if variant == "none" else sum(accepted),
                        "accepted_per_position": [] if variant == "none" else accepted,
                    },
                }
            )
    return blocks


def sample_steps(concurrency: int, k: int, slower: float) -> dict[str, Any]:
    """A block's steps as the server recorded them, each so much slower than when steps were timed."""
    costs = TIMES.of(k)
    decoding = {str(size): [40, 40 * slower * costs.seconds(size)] for size in {1, concurrency}}
    seconds = slower * (3 * costs.seconds(concurrency) + 600 * costs.prompt_token_s)
    return {"decoding": decoding, "prompts": {str(concurrency): [3, 600, seconds]}}


def queued_block(
    rate: float,
    seconds_each: float,
    seats: int = 8,
    count: int = 60,
    seed: int = 0,
    burst: float = 1.0,
) -> dict[str, Any]:
    """An open-loop block as a queue makes it: Poisson arrivals at `rate` a second, `seats` served at once, each for about
    `seconds_each`; who finds no seat waits for the first token."""
    random = np.random.default_rng(seed)
    gaps = random.exponential(size=count - 1)
    arrivals = [0.0, *np.cumsum(gaps * (count - 1) / rate / gaps.sum())]
    free, waits, services = [0.0] * seats, [], seconds_each * random.uniform(0.8, 1.2, count)
    for arrival, service in zip(arrivals, services, strict=True):
        seat = free.index(min(free))
        begin = max(arrival, free[seat])
        free[seat] = begin + service
        waits.append(begin - arrival + 0.03 * random.uniform(0.7, 1.3))
    tokens = random.integers(60, 120, count)
    deliveries = np.ceil((tokens - 1) / burst).astype(int)
    drafts = 0 if burst == 1.0 else int(deliveries.sum())
    return {
        "seconds": float(max(np.add(arrivals, waits) + services)),
        "output_tokens": int(tokens.sum()),
        "request_tokens": tokens.tolist(),
        "request_seconds": (np.array(waits) + services).tolist(),
        "request_deliveries": deliveries.tolist(),
        "ttft_ms": (1000 * np.array(waits)).tolist(),
        "tpot_ms": (1000 * services / tokens).tolist(),
        "itl_ms": np.repeat(1000 * services / deliveries, deliveries).tolist(),
        "counters": {
            "drafts": drafts,
            "accepted_tokens": round((burst - 1) * drafts),
            "accepted_per_position": [],
        },
        "arrivals_s": arrivals,
        "request_start_s": [arrival + 0.001 for arrival in arrivals],
        "source": "log",
        "spread": float(gaps.std() / gaps.mean()),
    }


def sample_rates(rates: tuple[float, ...] = (1.0, 4.0, 16.0)) -> dict[str, Any]:
    """Two scenarios at rates of which a server without speculation, that serves 4 a second, sustains all but the last."""
    return {
        scenario: {
            f"{rate:g}": rate_row(
                {
                    variant: [
                        queued_block(
                            rate, length * 2.0 / BURSTS[variant] ** 0.5, burst=BURSTS[variant]
                        )
                    ]
                    for variant in BURSTS
                },
                EVALUATION,
                QUIET,
            )
            for rate in rates
        }
        for scenario, length in (("long_in_long_out", 0.8), ("long_in_short_out", 0.3))
    }


def sample_replay(acceptance: float) -> ReplaySums:
    """Sums of 120 responses in 60 sessions whose drafts are each accepted with probability `acceptance`."""
    random, tokens = np.random.default_rng(1), np.arange(60, 300, 2).astype(float)
    k = np.arange(1, DEPTH + 1)
    length = (1 - acceptance ** (k + 1)) / (1 - acceptance)
    steps = tokens[:, None] / length * random.normal(1, 0.05, (120, 1))
    reached = steps[:, :, None] * acceptance ** k[None, None] * (k[None, :] <= k[:, None])
    names = [str(i) for i in range(120)], [str(i // 2) for i in range(120)]
    shares_G = np.array([0.8, 0.2])
    regions = tokens[:, None] * shares_G, steps[:, None] * shares_G[:, None]
    where = [("part of response", "reasoning"), ("part of response", "answer")]
    return ReplaySums(*names, tokens, steps, reached, reached / acceptance, *regions, regions=where)


def sample_examples(text: str = "word") -> dict[str, Any]:
    """One response of eight tokens, in three steps for base and two for custom; `text` is its first token."""
    kinds = {
        "base": ["first", "accepted", "own", "accepted", "accepted", "own", "accepted", "accepted"],
        "custom": [
            "first",
            "accepted",
            "accepted",
            "accepted",
            "extra",
            "accepted",
            "accepted",
            "own",
        ],
    }
    steps = {"base": [0, 1, 1, 2, 2, 2, 3, 3], "custom": [0, 1, 1, 1, 1, 2, 2, 2]}
    example: dict[str, Any] = {"place": "gains as usual", "tokens": 7, "left_out": 0}
    for variant, kinds_T in kinds.items():
        shown = [
            {"text": text if place == 0 else f" token\n{place}", "step": step, "kind": kind}
            | ({"instead": "<i>"} if kind == "own" else {})
            for place, (kind, step) in enumerate(zip(kinds_T, steps[variant], strict=True))
        ]
        count = steps[variant][-1]
        example[variant] = {"steps": count, "acceptance_length": 7 / count, "shown": shown}
    return {"k": K, "head": 4, "examples": [example]}


SLICES = {
    "tenant": {
        "acme|corp": [str(i) for i in range(114)],
        "<b>small</b>": [str(i) for i in range(114, 120)],
    },
    "fidelity": {"exact": [str(i) for i in range(120)]},
}
"""Two tenants, the second with three sessions; and a dimension of a single slice."""


def sample_parity(agreement: float = 0.996, difference: float = 0.01) -> dict[str, Any]:
    """Drafts of trainer and engine compared."""
    depth = {
        "n": 200,
        "agreement": agreement,
        "near_ties": 0.002,
        "difference": difference,
        "gap": 0.1,
    }
    return {
        "steps": 200,
        "agreement": agreement,
        "near_ties": 0.002,
        "difference": difference,
        "per_depth": [depth] * DEPTH,
    }


def sample_results(custom_speed: float = 1.4) -> dict[str, Any]:
    """As evaluate() writes it."""
    base, custom = sample_replay(0.6), sample_replay(0.8)
    blocks = {
        mode: sample_blocks(custom_speed, speed)
        for mode, speed in (("eager", 1.0), ("compiled", 2.3))
    }
    passes = {mode: counted_passes(measured) for mode, measured in blocks.items()}
    random = np.random.default_rng(2)
    marks = (random.random(48) < 0.9).tolist()
    detail = {
        "predicted_steps": 1503.2,
        "counted_drafts": 1500,
        "relative_difference": 0.0021,
        "delivered_tokens": 4000.0,
        "acceptance_length_delivered": {"replay": 4000 / 1503.2, "engine": 4000 / 1500},
        "acceptance_length_counters": 2.69,
        "cumulative": {"replay": [0.8, 0.6, 0.4], "engine": [0.8, 0.6, 0.4]},
    }
    results = {
        "version": VERSION,
        "recipe": "resume_screening",
        "run_dir": "runs/resume_screening",
        "target": "nano_r1",
        "speculator": {"kind": "mtp", "in_words": "an MTP layer", "weights_sha256": "ab" * 32},
        "not_measured": {},
        "own_text": {
            "own": True,
            "cause": "own",
            "text": "as likely as the target's own samples",
            "sequences": 120,
        },
        "heldout_time": {"first": 1.76e9, "last": 1.7601e9},
        "k": K,
        "choice": {
            **choose_k(custom.acceptance_length(), TIMES.step_s),
            "prompt_token_ms": {"none": 0.1, "drafting": 0.12},
            "source": "steps of the eager engine, measured",
            "requested": "auto",
            "sequences": 120,
        },
        "sampling": {"temperature": 0.6, "top_p": 0.95},
        "draft_sample_method": "greedy",
        "replay": _replay_results(base, custom, K, EVALUATION),
        "general": None,
        "interpolation": [],
        "slices": sliced(base, custom, K, SLICES, samples=200, seed=0),
        "counted": counted_acceptance(
            [one for mode in passes.values() for one in mode], EVALUATION
        ),
        "served": {
            mode: {
                "speed": summarise(measured, EVALUATION, noise_of(blocks)),
                "acceptance": counted_acceptance(passes[mode], EVALUATION),
            }
            for mode, measured in blocks.items()
        },
        "rates": {"compiled": sample_rates()},
        "scenarios": {
            name: {
                "requests": 40,
                "heldout": 200,
                "prompt_tokens": {"p10": 180, "p50": 205, "p90": 220},
                "response_tokens": {"p10": 170, "p50": 200, "p90": 250},
                "max_tokens": 256,
            }
            for name in ("long_in_long_out", "long_in_short_out")
        },
        "verification": {
            "requests": 24,
            "parity": {variant: sample_parity() for variant in ("base", "custom")},
            "greedy": {
                variant: compare_greedy(
                    [[1, 2], [1, 2]] * 12,
                    [[1, 2], [1, 2]] * 11 + [[1, 2], [1, 3]],
                    lambda *_: 0.1,
                    0.5,
                )
                for variant in ("base", "custom")
            },
            "sampled_text": {
                v: text_statistics([random.normal(-0.4, 0.2, 100) for _ in range(24)])
                for v in ("none", "base", "custom")
            },
            "same_text": {
                v: {"prompts": 24, "tokens": 5000, "bins": 40, "distance": 31.5, "p_value": 0.4}
                for v in ("base", "custom")
            },
            "task": task_accuracy(
                {v: marks for v in ("none", "base", "custom")},
                [str(i) for i in range(48)],
                margin=0.1,
            ),
            "replay_vs_engine": {
                "base": 0.0021,
                "custom": -0.003,
                "details": {
                    regime: {"base": detail, "custom": detail} for regime in ("greedy", "sampled")
                },
            },
        },
        "settings": EVALUATION.model_dump(mode="json"),
    }
    results["samples"] = None
    results["cost"] = None
    replayed = {"base": base, "custom": custom}
    results["predicted"] = {
        mode: predict_served(
            served["speed"], blocks[mode], K, replayed, TIMES if mode == "eager" else None, 200
        )
        for mode, served in results["served"].items()
    }
    results["verdict"] = judge(results, EVALUATION.gate, EVALUATION.parity)
    return results
