"""vLLM's speculative_config for kinds that are a directory of weights."""

from pathlib import Path
from typing import Any

from outrider.speculators.kinds.protocol import KPerBatchSize


def directory_settings(
    method: str,
    directory: Path | None,
    k: int,
    draft_sample_method: str,
    k_per_batch_size: KPerBatchSize | None,
) -> dict[str, Any]:
    """`speculative_config` of vLLM 0.32 for a drafter in `directory`."""
    settings: dict[str, Any] = {
        "method": method,
        "num_speculative_tokens": k,
        "model": str(directory),
        "draft_sample_method": draft_sample_method,
    }
    if k_per_batch_size:
        settings["num_speculative_tokens_per_batch_size"] = [list(row) for row in k_per_batch_size]
    return settings
