"""The engine that was measured: vLLM's release, and the kernels that it chose.

    engine_facts(run_dir, release="0.26.0")["attention"]      # "FLASHMLA" or "unknown"

Two machines with the same flags may run other kernels, which are slower or round otherwise. vLLM
has no request for them, so they are read from the servers' logs of all attempts.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from outrider.serving.releases import release_support
from outrider.serving.vllm_version import vllm_version

UNKNOWN = "unknown"

# vLLM 0.32: platforms/cuda.py:507, v1/attention/backends/mla/prefill/selector.py:106,
# layers/fused_moe/oracle/*.py (fp8.py:418), kernels/linear/__init__.py:847.
LINES = {
    "attention": re.compile(r"Using (\S+) (?:attention backend out of|(?:MLA prefill backend))"),
    "MoE": re.compile(r"Using '?([^'\n]+?)'? (?:[\w.]+ )*MoE backend(?: out of|\.)"),
    "linear": re.compile(r"Selected (\w+) for \w+"),
}
"""Lines of a log that name a backend."""


def engine_facts(run_dir: Path, release: str | None) -> dict[str, str]:
    """Release and backends of a run's servers, in words; `release` serves production."""
    facts = {"measured with": f"vLLM {vllm_version()}"}
    if release is not None and (words := release_support(release)):
        facts["production"] = words
    logs = sorted(run_dir.glob("logs/attempt_*/server_*.log"))
    texts = [log.read_text(encoding="utf-8", errors="replace") for log in logs]
    return facts | backends(texts)


def backends(texts: Iterable[str]) -> dict[str, str]:
    """The attention, MoE and linear backends that logs name; `unknown` if they name none."""
    found: dict[str, dict[str, None]] = {part: {} for part in LINES}
    for text in texts:
        for part, line in LINES.items():
            found[part] |= dict.fromkeys(line.findall(text))
    return {part: " and ".join(names) or UNKNOWN for part, names in found.items()}
