"""A whole report.json from synthetic measurements, computed by the real code.

sample_results(custom_speed=1.4)
history_report(30, 2.0, 2.4)      # of the 30th day, with these acceptance lengths
sample_kinds()                    # three kinds of drafter and n-gram lookup, eagle3 first
"""

import functools
import itertools
from typing import Any

import numpy as np

from outrider.eval.bench.capacity import LatencyLimits, summarise_capacity
from outrider.eval.bench.counted import counted_acceptance, counted_passes
from outrider.eval.bench.metrics import SpeedRatios
from outrider.eval.bench.open_loop import rate_row
from outrider.eval.bench.outputs import REGIMES
from outrider.eval.bench.prompts import Prompt
from outrider.eval.both_together import predict_both
from outrider.eval.choose_k import choose_k
from outrider.eval.choose_kind import rank_kinds
from outrider.eval.config import EvalConfig
from outrider.eval.gate import judge_findings
from outrider.eval.lossless.equal_text import compare_greedy, excess, tail_share
from outrider.eval.lossless.task_accuracy import task_accuracy
from outrider.eval.replay.both_together import Anchors
from outrider.eval.replay.heldout_replay import replay_figures
from outrider.eval.replay.slices import slice_results
from outrider.eval.replay.sums import ReplaySums
from outrider.eval.results.parts import (
    DRAFTERS,
    LOOKUP,
    VARIANTS,
    ClusteredEstimate,
    Drafters,
    Variants,
)
from outrider.eval.results.report import (
    Example,
    Findings,
    Report,
    RequestSampling,
    SpeculatorIdentity,
    Walk,
)
from outrider.eval.results.sections import (
    Capacity,
    EngineFindings,
    KChoice,
    KindSpeed,
    LookupChoice,
    OnPolicy,
    Quantiles,
    RateRow,
    ReplayAgainstEngine,
    SameText,
    Scenario,
    ServedSpeed,
    Verification,
)
from outrider.eval.stats.clusters import INDEPENDENT
from outrider.serving.speculator import Speculator

EVALUATION = EvalConfig(repeats=3, lookup="ngram")
K, DEPTH = 3, 4
BOTH_K = Drafters[int](base=2, custom=K)
BURSTS = {"none": 1.0, "base": 2.2, "custom": 2.9}
"""Tokens that a delivery brings."""
SPECULATORS = {drafter: Speculator("mtp") for drafter in DRAFTERS}
TIMED = [
    Prompt(sequence_id=f"q{number}", session=f"s{number}", user=INDEPENDENT, token_ids=[], text="")
    for number in range(6)
]
"""The timed prompts."""
SPEEDS = SpeedRatios(EVALUATION, TIMED, main=1)
"""Speeds compared without exact replay."""
STEP_S = {
    1: {1: 0.013, 2: 0.014, 3: 0.0165, 4: 0.02},
    8: {1: 0.03, 2: 0.04, 3: 0.06, 4: 0.08},
}
"""Seconds of a step by batch size and drafts."""


def sample_blocks(custom_speed: float = 1.4, mode_speed: float = 1.0) -> list[dict[str, Any]]:
    """Timed blocks: custom is `custom_speed` times as fast as base, and repeats drift."""
    random = np.random.default_rng(0)
    blocks = []
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
                    "prompts": [(repeat + place) % len(TIMED) for place in range(n)],
                    "alternated": False,
                    "engine": "none" if variant == "none" else "speculating",
                    "start": repeat,
                    "seconds": float(latency.sum() / concurrency),
                    "output_tokens": int(tokens.sum()),
                    "request_shares": [1.0] * n,
                    "request_tokens": tokens.tolist(),
                    "request_seconds": latency.tolist(),
                    "request_deliveries": np.ceil((tokens - 1) / BURSTS[variant])
                    .astype(int)
                    .tolist(),
                    "ttft_ms": random.uniform(20, 40, n).tolist(),
                    "tpot_ms": (1000 * latency / tokens).tolist(),
                    "itl_ms": random.uniform(10, 30, 50).tolist(),
                    "counters": {
                        "generation_tokens": int(tokens.sum()),
                        "draft_tokens": 0 if variant == "none" else 3 * drafts,
                        "drafts": 0 if variant == "none" else drafts,
                        "accepted_tokens": 0 if variant == "none" else sum(accepted),
                        "accepted_per_position": [] if variant == "none" else accepted,
                        "queried_tokens": 500 * n,
                        "cached_tokens": 320 * n,
                        "preemptions": 0 if variant == "none" else 2,
                    },
                    "cache": {
                        "kv_tokens": 131_072 if variant == "none" else 123_904,
                        "production_tokens": 300 * n,
                    },
                }
            )
    return blocks


def with_lookup(blocks: list[dict[str, Any]], speed: float = 0.9) -> list[dict[str, Any]]:
    """Adds n-gram lookup at the main concurrency, `speed` times as fast as base."""
    return blocks + [
        block | {"variant": LOOKUP, "engine": LOOKUP, "seconds": block["seconds"] / speed}
        for block in blocks
        if block["variant"] == "base" and block["concurrency"] == EVALUATION.main
    ]


def queued_block(
    rate: float,
    seconds_each: float,
    seats: int = 8,
    count: int = 60,
    seed: int = 0,
    burst: float = 1.0,
) -> dict[str, Any]:
    """An open-loop block of a simulated queue.

    Arrivals are Poisson at `rate` per second. `seats` requests are served at once, each for about
    `seconds_each`; a request without a seat waits for its first token.
    """
    random = np.random.default_rng(seed)
    gaps = random.exponential(size=count - 1)
    arrivals = [0.0, *np.cumsum(gaps * (count - 1) / rate / gaps.sum())]
    free = [0.0] * seats
    waits = []
    services = seconds_each * random.uniform(0.8, 1.2, count)
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
        "request_shares": [1.0] * count,
        "request_tokens": tokens.tolist(),
        "request_seconds": (np.array(waits) + services).tolist(),
        "request_deliveries": deliveries.tolist(),
        "ttft_ms": (1000 * np.array(waits)).tolist(),
        "tpot_ms": (1000 * services / tokens).tolist(),
        "itl_ms": np.repeat(1000 * services / deliveries, deliveries).tolist(),
        "counters": {"drafts": drafts, "accepted_tokens": round((burst - 1) * drafts)},
        "arrivals_s": arrivals,
        "request_start_s": [arrival + 0.001 for arrival in arrivals],
        "source": "log",
    }


def sample_capacity() -> Capacity:
    """Base serves 3 requests/s within the limits and custom 6; none was within them at 3."""
    limits = LatencyLimits(ttft_ms=120.4, tpot_ms=41.26, source="no speculation, concurrency 1")
    rates = {"none": (3.0, 40.0), "base": (3.0, 40.0), "custom": (6.0,)}
    blocks = {}
    for variant, burst in BURSTS.items():
        blocks[variant] = [
            {**queued_block(rate, 2.0 / burst), "rate": rate} for rate in rates[variant]
        ]
    return summarise_capacity(blocks, limits)


def sample_rates(rates: tuple[float, ...] = (1.0, 4.0, 16.0)) -> dict[str, dict[str, RateRow]]:
    """Two scenarios at three rates, of which no speculation sustains the first two."""
    table: dict[str, dict[str, RateRow]] = {}
    for scenario, length in (("long_in_long_out", 0.8), ("long_in_short_out", 0.3)):
        table[scenario] = {}
        for rate in rates:
            blocks = {
                variant: queued_block(rate, length * 2.0 / burst**0.5, burst=burst)
                for variant, burst in BURSTS.items()
            }
            table[scenario][f"{rate:g}"] = rate_row(blocks)
    return table


def sample_replay(acceptance: float, depth: int = DEPTH) -> ReplaySums:
    """Sums of 120 responses in 60 sessions, with probability `acceptance` for each draft."""
    random = np.random.default_rng(1)
    tokens = np.arange(60, 300, 2).astype(float)
    k = np.arange(1, depth + 1)
    length = (1 - acceptance ** (k + 1)) / (1 - acceptance)
    steps = tokens[:, None] / length * random.normal(1, 0.05, (120, 1))
    reached = steps[:, :, None] * acceptance ** k[None, None] * (k[None, :] <= k[:, None])
    names = [str(i) for i in range(120)], [str(i // 2) for i in range(120)], [INDEPENDENT] * 120
    shares_G = np.array([0.8, 0.2])
    regions = tokens[:, None] * shares_G, steps[:, None] * shares_G[:, None]
    where = [("part of response", "reasoning"), ("part of response", "answer")]
    return ReplaySums(*names, tokens, steps, reached, *regions, regions=where)


def sample_references() -> dict[str, ReplaySums]:
    """Sums of n-gram lookup and of a perfect drafter."""
    return {"ngram": sample_replay(0.4), "ceiling": sample_replay(0.9)}


LOOKUPS = {
    "ngram": LookupChoice(
        settings={"prompt_lookup_min": 1, "prompt_lookup_max": 4},
        k=2,
        runner="v1",
        step_ms={1: 11.0, 2: 11.2, 3: 11.4},
    )
}


def sample_choice(replays: dict[str, ReplaySums]) -> KChoice:
    """K from `STEP_S`, 2 for base and 3 for custom, with n-gram lookup at K = 2."""
    lengths = {name: replays[name].acceptance_length() for name in DRAFTERS}
    return choose_k(
        lengths,
        dict.fromkeys(DRAFTERS, STEP_S),
        1,
        {},
        prefill={name: {1: 0.0002} for name in DRAFTERS},
        step_contexts=Quantiles(p50=260, p90=340, p99=390),
        lookups=LOOKUPS,
        lookup="ngram",
        acceptance_length=Drafters[list[float]](**lengths),
    )


def sample_anchors(seed: int) -> Anchors:
    """Drafts at the anchors of `sample_replay`'s responses.

    Each draft of custom is accepted with probability 0.8. N-gram lookup has a match at one anchor
    in four, whose drafts are all accepted.
    """
    random = np.random.default_rng(seed)
    anchors_R = np.arange(60, 300, 2)
    number = int(anchors_R.sum())
    matched_N = random.random(number) < 0.25
    return Anchors(
        anchors_R=anchors_R,
        probability_N=np.full(number, 0.8),
        head_N=(random.random((number, K)) < 0.8).cumprod(axis=1).sum(axis=1),
        score_N=np.zeros(number),
        length_N=4 * matched_N,
        lookup_N=LOOKUPS["ngram"].k * matched_N,
    )


AT_BOTH_K = KChoice(k=BOTH_K, main_concurrency=1, lookups=LOOKUPS, lookup="ngram")
"""Both at `BOTH_K`, chosen by hand."""


def sample_examples(text: str = "word") -> list[Example]:
    """A response of seven tokens after `text`: three steps for base, two for custom."""
    base = Walk(steps=3, shown=[("", text), ("`a", " b"), (" c d", " e\n"), ("f", "g")])
    custom = Walk(steps=2, shown=[("", text), ("`a b c", " d"), ("e", " f")])
    return [Example(place="gains a typical amount", tokens=7, base=base, custom=custom)]


SLICES = {
    "tenant": {
        "acme|corp": [str(i) for i in range(114)],
        "<b>small</b>": [str(i) for i in range(114, 120)],
    },
    "fidelity": {"exact": [str(i) for i in range(120)]},
}
"""Two tenants, the second with three sessions; and a dimension of a single slice."""


def sample_engine_findings() -> EngineFindings:
    """What the outputs of a mode showed: lossless, and replay agrees."""
    random = np.random.default_rng(2)
    greedy = compare_greedy(
        [[1, 2], [1, 2]] * 12, [[1, 2], [1, 2]] * 11 + [[1, 2], [1, 3]], lambda *_: 0.1, 0.125
    )
    added = excess(greedy, greedy)
    return EngineFindings(
        greedy=Drafters(base=greedy, custom=greedy),
        control=greedy,
        excess=added,
        greedy_acceptance_length=Drafters(base=2.69, custom=2.69),
        tail_share=Variants(
            **{
                variant: tail_share([random.normal(-0.4, 0.2, 100) for _ in range(24)])
                for variant in VARIANTS
            }
        ),
        same_text=SameText(prompts=24, tokens=5000, p_value=0.4),
        replay_vs_engine=ReplayAgainstEngine(base=0.0021, custom=-0.003, control=0.0),
    )


def served_measurements(
    custom_speed: float, blocks: list[dict[str, Any]] | None = None, prompts: int = 3
) -> dict[str, Any]:
    """What an evaluation in eager mode measures in servers at K = 3, as it is kept.

    The responses have two tokens per prompt, each with the counters of the variant's last block.
    """
    blocks = blocks or sample_blocks(custom_speed)
    counted = {block["variant"]: [block["counters"]] * prompts for block in blocks}
    responses = {
        f"{regime}_{variant}": {"token_ids": [[1, 2]] * prompts, "counted": counted[variant]}
        for regime in REGIMES
        for variant in VARIANTS
    }
    for variant in ("none", "custom"):
        responses[f"greedy_{variant}_again"] = responses[f"greedy_{variant}"]
    return {
        "speed_eager": blocks,
        "step_times_eager": {"seconds": {"ngram": {"1": {"2": 0.011, "4": 0.012}}}},
        "rates_eager": {},
        "verification_eager": sample_engine_findings().model_dump(mode="json"),
        **{
            f"responses_eager_{name}_k{0 if '_none' in name else 3}": own
            for name, own in responses.items()
        },
    }


def sample_findings(custom_speed: float = 1.4) -> Findings:
    """All that run_evaluation() measures."""
    return _findings(custom_speed).model_copy(deep=True)


@functools.cache
def _findings(custom_speed: float) -> Findings:
    base = sample_replay(0.6)
    custom = sample_replay(0.8)
    replays = {"base": base, "custom": custom, **sample_references()}
    speeds = {"eager": 1.0, "compiled": 2.3}
    blocks = {mode: with_lookup(sample_blocks(custom_speed, own)) for mode, own in speeds.items()}
    passes = {mode: counted_passes(measured, TIMED) for mode, measured in blocks.items()}
    served = {
        mode: ServedSpeed(
            k=BOTH_K,
            speed=SPEEDS.summarise(measured),
            repeats=EVALUATION.repeats,
        )
        for mode, measured in blocks.items()
    }
    choice = sample_choice(replays)
    marks = (np.random.default_rng(2).random(48) < 0.9).tolist()
    scenario = Scenario(
        requests=40,
        prompt_tokens=Quantiles(p50=180, p90=205, p99=220),
        response_tokens=Quantiles(p50=170, p90=200, p99=250),
    )
    return Findings(
        recipe="resume_screening",
        run_dir="runs/resume_screening",
        target="nano_r1",
        speculator=SpeculatorIdentity(kind="mtp", weights_sha256="ab" * 32),
        not_measured={},
        own_text=OnPolicy(cause="own", text="on-policy", sequences=120, not_checked=0),
        heldout_until=1.7601e9,
        choice=choice,
        sampling=RequestSampling(temperature=0.6, top_p=0.95),
        draft_sample_method="greedy",
        replay=replay_figures(replays, AT_BOTH_K),
        general=None,
        both_together=predict_both(
            validation=sample_anchors(0),
            heldout=sample_anchors(1),
            custom=custom,
            lookup=replays["ngram"],
            choice=choice,
        ),
        slices=slice_results(base, custom, K, SLICES),
        counted=counted_acceptance([*passes["eager"], *passes["compiled"]], SPECULATORS, BOTH_K),
        runners=Variants(none="v1", base="v1", custom="v1"),
        served=served,
        rates={"compiled": sample_rates()},
        capacity={"compiled": sample_capacity()},
        scenarios={"long_in_long_out": scenario, "long_in_short_out": scenario},
        verification=Verification(
            modes={mode: sample_engine_findings() for mode in speeds},
            task=task_accuracy(dict.fromkeys(VARIANTS, marks), [str(i) for i in range(48)]),
        ),
        samples=None,
        settings=EVALUATION.model_dump(mode="json"),
    )


def sample_results(custom_speed: float = 1.4) -> Report:
    """As run_evaluation() makes it, without prices and the run's other sections."""
    findings = sample_findings(custom_speed)
    return Report(**dict(findings), cost=None, verdict=judge_findings(findings, EVALUATION.gate))


SPREAD = 0.02


def estimate(value: float, spread: float = SPREAD) -> ClusteredEstimate:
    """With an interval of 2 % to either side."""
    return ClusteredEstimate(
        value=value,
        low=value / (1 + spread),
        high=value * (1 + spread),
        observations=120,
        clusters=60,
        over="60 sessions",
    )


def history_report(day: float, base: float, custom: float, **other: Any) -> Report:
    """A report of one evaluation, whose held-out traffic ends on that day."""
    results = sample_results()
    lengths = {"base": base, "custom": custom, "ratio": custom / base}
    replay = results.replay.model_copy(
        update={name: estimate(value) for name, value in lengths.items()}
    )
    update = {"heldout_until": 1.76e9 + 86400 * day, "replay": replay} | other
    return results.model_copy(update=update)


STEPS_MS = {
    "mtp": {1: 13.0, 2: 14.0, 3: 15.0, 4: 16.0},
    "eagle3": {1: 12.0, 2: 12.6, 3: 13.2, 4: 13.8},
    "p_eagle": {4: 12.5},
    "ngram": {1: 11.0, 2: 11.1, 3: 11.2, 4: 11.3},
}
"""Milliseconds of a step of one request, by number of drafts."""
ACCEPTANCE = {"mtp": 0.8, "eagle3": 0.8, "p_eagle": 0.6, "ngram": 0.4}
TRAINED = {"parameters": 1_910_000, "training_minutes": 4.2, "runner": "v2"}
FACTS = {
    "mtp": TRAINED,
    "eagle3": TRAINED,
    "p_eagle": TRAINED | {"runner": "v1"},
    "ngram": {"runner": "v2"},
}


def sample_steps() -> dict[str, dict[int, dict[int, float]]]:
    """Kind -> batch size -> drafts -> seconds."""
    return {
        kind: {EVALUATION.main: {k: ms / 1000 for k, ms in row.items()}}
        for kind, row in STEPS_MS.items()
    }


def sample_kinds(ngram: float = ACCEPTANCE["ngram"]) -> list[KindSpeed]:
    """The choice among these kinds, where lookup accepts a draft with this probability."""
    acceptance = ACCEPTANCE | {"ngram": ngram}
    replays = {kind: sample_replay(share) for kind, share in acceptance.items()}
    steps = {kind: sizes[EVALUATION.main] for kind, sizes in sample_steps().items()}
    return rank_kinds(replays, steps, EVALUATION.main, FACTS, prefill={})
