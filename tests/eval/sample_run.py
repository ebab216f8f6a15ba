"""A run directory whose report has every section.

report = write_sample_run(tmp_path)      # the page's path
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

from outrider.data.config import PrivacyConfig
from outrider.data.privacy.guard import PrivacyTally
from outrider.eval.config import CostConfig
from outrider.eval.replay.heldout_replay import replay_figures
from outrider.eval.report.report import sections_of, write_report
from outrider.eval.summary import serving_costs
from tests.eval.sample_results import (
    AT_BOTH_K,
    sample_examples,
    sample_kinds,
    sample_references,
    sample_replay,
    sample_results,
)


def sample_traffic() -> dict[str, Any]:
    """The ingest's summary."""
    bins = {"n": 5, "p50": 12, "p90": 18, "p99": 18, "max": 18}
    return {
        "rows": 7,
        "exchanges": 5,
        "joined": 0,
        "extra_choices": 0,
        "without_time": 0,
        "rejects": {"not_json": 2},
        "formats": {"openai_pairs": 7},
        "models": {"r1": 5},
        "tenants": {"<b>acme</b>": 5},
        "routes": {},
        "fidelity": {"exact": 5},
        "retokenized_against_usage": {},
        "sampling": {"temperature": {"0.6": 5}, "top_p": {"0.95": 5}, "top_k": {"off": 5}},
        "sessions": {"distinct": 2, "most_exchanges": 3},
        "duplicates": {"prompts": 5, "identical": 0, "most_copies": 1},
        "time": None,
        "load": {
            "p50": 1,
            "p90": 4,
            "p99": 9,
            "max": 12,
            "busy_share": {"1": 0.5, "2": 0.2, "4": 0.2, "7": 0.08, "12": 0.02},
            "durations_logged": 0,
            "durations_estimated": 5,
            "tpot_ms": 30.0,
        },
        "lengths": {"prompt": bins, "completion": bins, "reasoning": {"n": 0}},
    }


def sample_on_policy() -> dict[str, Any]:
    """The capture's check of the traffic: on-policy."""
    described = {
        "sequences": 300,
        "tokens": 60000,
        "not_checked": 0,
        "masked": 0,
        "unusable_grammars": 0,
        "sampled_mean_logprob": -0.412,
        "expected_range": [-0.42, -0.405],
        "below_1e4": 0.0015,
        "z": 0.4,
        "quarantined": 0,
        "lowest_own_share": 0.97,
        "verdict": {"own": True, "cause": "own", "text": "as likely as the target's own samples"},
    }
    return {
        "min_on_policy": 0.9,
        "all": described,
        "parts": {"train": described, "heldout": described},
        "slices": {"tenant": {"acme": described, "small": described}},
    }


def write_sample_run(run: Path, text: str = "word") -> Path:
    """Writes the inputs of a whole report, and the report; `text` begins the example response."""
    results = sample_results()
    cost = CostConfig(gpu_hour_price=2.5, currency="EUR", tokens_per_s=20000)
    replays = {"base": sample_replay(0.6), "custom": sample_replay(0.59), **sample_references()}
    general = replay_figures(replays, AT_BOTH_K)
    results = results.model_copy(
        update={
            "cost": serving_costs(results.served, cost, gpus=8),
            "settings": results.settings | {"cost": cost.model_dump(mode="json")},
            "general": general,
            "samples": sample_examples(text),
            "kinds": sample_kinds(),
        }
    )
    files = {
        "provenance.json": {
            "command_line": ["train-speculator", "--recipe", "resume_screening.yaml", "x" * 300],
            "started": "2026-03-01T10:00:00+00:00",
            "git": {"commit": "0123456789abcdef" * 2, "dirty": False},
            "versions": {"torch": "2.13.0", "vllm": "0.32.0"},
        },
        "traffic/summary.json": sample_traffic(),
        "features/on_policy.json": sample_on_policy(),
    }
    for name, value in files.items():
        path = run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(value, allow_nan=False))
    found = Counter({"EMAIL_ADDRESS.prompt": 9731, "CREDIT_CARD.completion": 4})
    tally = PrivacyTally(
        exchanges=5000,
        with_any=1203,
        replaced=1199,
        to_regenerate=7,
        left_out=Counter(privacy_regenerate=4),
        found=found,
    )
    tally.write(PrivacyConfig(mode="surrogate"), run / "traffic" / "privacy.json")
    lines = [
        {"step": s, "validation_acceptance_length": [1.5, 2.0 + s / 100]} for s in (0, 50, 100)
    ]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return write_report(results.model_copy(update=sections_of(run)), run, run)
