"""Bundles with a real serve.sh and evidence, whose weights are any bytes."""

from pathlib import Path
from typing import Any

from outrider.common.files import write_json
from outrider.serving.bundle.bundle import serve_script
from outrider.serving.bundle.bundle_digest import list_files
from outrider.serving.config import EngineConfig, TargetConfig
from outrider.serving.serve_flags import serve_entry
from outrider.serving.speculator import Drafting, Speculator

R1 = "deepseek-ai/DeepSeek-R1"

EVIDENCE = {
    "recipe": "march",
    "recipe_sha256": "ab" * 32,
    "report_sha256": "cd" * 32,
    "verdict": "ship",
    "reason": "acceptance length, custom / base: 1.200 [1.150, 1.250] over 49 held-out sessions",
    "k": {"base": 1, "custom": 3},
    "acceptance_length": {
        "base": 1.8541,
        "custom": 2.7312,
        "ratio": 1.4731,
        "ratio_ci95": [1.4512, 1.4951],
    },
    "tokens_per_s": {
        "compiled": {
            "16": {"none": 70.0, "base": 95.25, "custom": 121.5, "custom_over_base": 1.2756,
                   "custom_over_base_ci95": [1.2111, 1.3422]},
            "2": {"none": 80.0, "base": 110.0, "custom": 150.0, "custom_over_base": 1.3636,
                  "custom_over_base_ci95": [1.3, 1.4]},
        }
    },
}  # fmt: skip


def files(folder: Path) -> dict[str, bytes]:
    """Contents by path below the folder."""
    found = folder.rglob("*")
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in found if p.is_file()}


def engine(**changed: Any) -> EngineConfig:
    """R1 on one node, unless `changed` has other settings."""
    settings = {
        "tensor_parallel": 8,
        "mode": "compiled",
        "extra_arguments": {"enable_prefix_caching": True},
    }
    return EngineConfig(**settings | changed)


def write_exported(
    folder: Path,
    model: str = R1,
    revision: str | None = None,
    k: int = 3,
    schedule: list[tuple[int, int, int]] | None = None,
    settings: EngineConfig | None = None,
    weights: bytes = b"weights",
    **changed: Any,
) -> Path:
    """A bundle as export_bundle writes it; the target's files are never read.

    `changed` replace keys of bundle.json.
    """
    target = TargetConfig(model=model, revision=revision)
    used = settings or engine()
    drafting = Drafting(Speculator("mtp"), k, k_per_batch_size=schedule)
    (folder / "sglang_nextn").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(weights)
    (folder / "sglang_nextn" / "model.safetensors").write_bytes(weights[::-1])
    # A hub id's directory would be downloaded: an embedded target stands in for it.
    (folder / "serve.sh").write_text(serve_script(TargetConfig(), used, drafting))
    (folder / "serve.sh").chmod(0o755)
    manifest = {
        **list_files(folder),
        **drafting.as_manifest(),
        "target": target.model_dump(),
        "vllm": "0.32.0",
        "serve": serve_entry(TargetConfig(), used),
        "evidence": EVIDENCE,
    }
    write_json(folder / "bundle.json", manifest | changed)
    return folder
