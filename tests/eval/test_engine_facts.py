"""The engine's release and backends, from the lines that vLLM 0.32 logs."""

from pathlib import Path

from outrider.eval.engine_facts import backends, engine_facts

BEGIN = "(Worker pid=1) INFO 11-28 17:19:50"
GPU = "\n".join([
    f"{BEGIN} [cuda.py:506] Using FLASHMLA attention backend out of potential backends: [].",
    f"{BEGIN} [selector.py:106] Using FLASH_ATTN MLA prefill backend.",
    f"{BEGIN} [fp8.py:418] Using DEEPGEMM Fp8 MoE backend out of potential backends: ['TRITON'].",
    f"{BEGIN} [__init__.py:846] Selected CutlassFp8BlockScaledMMKernel for Fp8LinearMethod",
    f"{BEGIN} [launcher.py:1] Using 8 workers",
])  # fmt: skip
CPU = "\n".join([
    f"{BEGIN} [unquantized.py:364] Using CPU Unquantized MoE backend out of potential backends: []",
    f"{BEGIN} [unquantized.py:529] Using CPUUnquantizedExperts MoE backend",
])  # fmt: skip


def test_backends_are_those_of_the_log_or_unknown() -> None:
    assert backends([GPU]) == {
        "attention": "FLASHMLA and FLASH_ATTN",
        "MoE": "DEEPGEMM",
        "linear": "CutlassFp8BlockScaledMMKernel",
    }
    assert backends([CPU]) == {"attention": "unknown", "MoE": "CPU", "linear": "unknown"}
    assert set(backends([]).values()) == {"unknown"}


def test_logs_of_all_attempts_are_read_and_differences_shown(tmp_path: Path) -> None:
    for attempt, text in ((1, GPU), (2, GPU.replace("DEEPGEMM", "TRITON", 1))):
        log = tmp_path / "logs" / f"attempt_{attempt}" / "server_compiled_none.log"
        log.parent.mkdir(parents=True)
        log.write_text(text)
    facts = engine_facts(tmp_path, "0.22.0")
    assert facts["MoE"] == "DEEPGEMM and TRITON"
    assert facts["measured with"].startswith("vLLM 0.32.0")
    assert facts["production"].startswith("measured with 0.32.0, served with 0.22.0: ")
    assert "production" not in engine_facts(tmp_path, None)
