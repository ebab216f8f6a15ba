import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Settings:
    model: str = os.getenv("LLM_MODEL", "Qwen/Qwen3-14B")
    revision: str = os.getenv("LLM_REVISION", "main")
    tp: int = int(os.getenv("LLM_TP", "2"))
    max_len: int = int(os.getenv("LLM_MAX_LEN", "24576"))
    max_seqs: int = int(os.getenv("LLM_MAX_SEQS", "80"))
    draft: str | None = os.getenv("LLM_DRAFT", "AngelSlim/Qwen3-14B_eagle3")
    draft_k: int = 4
    request_timeout_s: float = 120.0


settings = Settings()
