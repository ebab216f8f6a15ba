"""The report of all checks: a table and figures as text, and the same as JSON.

report = as_report(CHECKS, outcomes)
print(as_text(report))
"""

import dataclasses
import platform
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from outrider.pipeline.gpu_check.check import Check, Outcome
from outrider.serving.vllm_hooks.version import vllm_version


def as_report(checks: Sequence[Check], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """One object with the machine, counts and every outcome."""
    words = {check.name: check.in_words for check in checks}
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "vllm": vllm_version(),
        "machine": platform.machine(),
        "device": _device(),
        "counts": dict(Counter(f"{each.place} {each.status}" for each in outcomes)),
        "seconds": round(sum(each.seconds for each in outcomes), 1),
        "checks": [{"in_words": words[each.name], **dataclasses.asdict(each)} for each in outcomes],
    }


def as_text(report: dict[str, Any]) -> str:
    """A line for each outcome, its reason and its figures below it."""
    lines = [
        f"gpu-check, {report['time']}, vLLM {report['vllm']}, {report['device']}",
        "",
    ]
    for each in report["checks"]:
        lines.append(
            f"{each['status']:<8} {each['place']}  {each['name']:<10} {each['seconds']:6.1f} s"
            f"  {each['in_words']}"
        )
        if each["reason"]:
            lines.append(f"         {each['reason']}")
        lines += [f"         {name}: {_short(value)}" for name, value in each["figures"].items()]
    counts = ", ".join(f"{count} {name}" for name, count in sorted(report["counts"].items()))
    return "\n".join([*lines, "", f"{counts}; {report['seconds']:.0f} s", ""])


def _device() -> str:
    import torch

    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}"
    return "no GPU"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
