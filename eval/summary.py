"""Concludes an evaluation: prices, verdict, report, and the summary for scripts.

    conclude(context, findings)["acceptance_length"]["ratio"]

An endpoint that delivers s tokens/s on g GPUs costs g * price / 3600 / s per token. Delivering n
tokens/s needs n / s such endpoints.
"""

from collections.abc import Mapping
from typing import Any

from outrider.eval.config import CostConfig
from outrider.eval.context import EvaluationContext
from outrider.eval.engine_facts import engine_facts
from outrider.eval.gate import judge_findings
from outrider.eval.results.parts import DRAFTERS, VARIANTS, Estimate, Variants
from outrider.eval.results.report import Findings, Report
from outrider.eval.results.sections import Capacity, Cost, ServedSpeed, SpeedRow

HOURS_A_MONTH = 730


def conclude(context: EvaluationContext, findings: Findings) -> dict[str, Any]:
    """Prices and judges the findings, and writes the report."""
    from outrider.eval.report.report import lost_ends_in_words, sections_of, write_report

    settings = context.settings
    folders = context.folders
    gpus = context.serving.engine.gpus
    trained = folders.trained or folders.run
    lost = (*lost_ends_in_words(folders.run, trained), *findings.lost_ends)
    capacity = findings.capacity
    if settings.cost:
        capacity = {
            mode: price_capacity(row, settings.cost, gpus) for mode, row in capacity.items()
        }
    sections = sections_of(folders.run)
    sections["provenance"]["engine"] = engine_facts(folders.run, context.serving.production_release)
    report = Report(
        **dict(findings) | {"lost_ends": lost, "capacity": capacity},
        cost=serving_costs(findings.served, settings.cost, gpus) if settings.cost else None,
        verdict=judge_findings(findings, settings.gate),
        kinds=context.kinds,
        **sections,
    )
    page = write_report(report, folders.report, trained)
    return {**report_summary(report), "report": str(page), "bundle": None}


def price_capacity(capacity: Capacity, cost: CostConfig, gpus: int) -> Capacity:
    """Adds the prices of tokens at each variant's highest rate within the limits."""
    price = _price(cost, gpus)
    prices = {}
    for variant in VARIANTS:
        speed = capacity.of(variant).tokens_per_s
        prices[variant] = None if speed is None else price / speed
    per_million = Variants[float | None](**prices)
    return capacity.model_copy(update={"per_million_tokens": per_million})


def _price(cost: CostConfig, gpus: int) -> float:
    """Price of a million tokens at 1 token/s."""
    return 1e6 * gpus * cost.gpu_hour_price / 3600


def serving_costs(
    served: Mapping[str, ServedSpeed], cost: CostConfig, gpus: int
) -> dict[str, dict[str, Cost]]:
    """Costs of an endpoint with `gpus` GPUs, by engine mode and concurrency."""

    def cost_of(row: SpeedRow) -> Cost:
        speeds = {variant: row.of(variant).tokens_per_s for variant in VARIANTS}
        price = _price(cost, gpus)
        hours = None
        if cost.tokens_per_s is not None:
            gpu_hours = HOURS_A_MONTH * gpus * cost.tokens_per_s
            hours = Variants[float](**{name: gpu_hours / speed for name, speed in speeds.items()})
        prices = Variants[float](**{name: price / speed for name, speed in speeds.items()})
        return Cost(per_million_tokens=prices, gpu_hours_a_month=hours)

    return {
        mode: {size: cost_of(row) for size, row in measured.speed.items()}
        for mode, measured in served.items()
    }


def report_summary(results: Report) -> dict[str, Any]:
    """The summary that scripts read; the caller adds `report` and `bundle`."""
    against = next(iter(results.verification.modes.values())).replay_vs_engine
    steps = {name: against.of(name) for name in DRAFTERS} if against else None
    return {
        "recipe": results.recipe,
        "run_dir": results.run_dir,
        "kind": results.speculator.kind,
        "verdict": results.verdict.verdict,
        "reason": results.verdict.reason,
        "k": {name: results.choice.k.of(name) for name in DRAFTERS},
        "lookup": results.lookup_line or None,
        "acceptance_length": _lengths(results),
        "tokens_per_s": {mode: _speeds(served) for mode, served in results.served.items()},
        "replay_vs_engine": steps,
    }


def _lengths(results: Report) -> dict[str, Any]:
    """Acceptance lengths on which the verdict is based, with their K."""
    replay = results.replay
    counted = results.counted
    ratio = results.acceptance_ratio
    return {
        "k": {name: results.acceptance_k.of(name) for name in DRAFTERS},
        "base": replay.base.value if replay else counted.base.acceptance_length,
        "custom": replay.custom.value if replay else counted.custom.acceptance_length,
        "ratio": ratio.value,
        "ratio_ci95": [ratio.low, ratio.high],
    }


def _speeds(served: ServedSpeed) -> dict[str, dict[str, Any]]:
    """Concurrency -> tokens/s of all variants, and custom's ratios."""
    return {concurrency: _row(row) for concurrency, row in served.speed.items()}


def _row(row: SpeedRow) -> dict[str, Any]:
    figures: dict[str, Any] = {name: row.of(name).tokens_per_s for name in VARIANTS}
    figures |= _over("base", row.custom_over_base)
    figures["estimator"] = row.custom_over_base.estimator
    if row.lookup:
        figures["lookup"] = row.lookup.block.tokens_per_s
        figures |= _over("lookup", row.lookup.custom_over)
    return figures


def _over(name: str, ratio: Estimate) -> dict[str, Any]:
    return {f"custom_over_{name}": ratio.value, f"custom_over_{name}_ci95": [ratio.low, ratio.high]}
