"""Names that a vLLM process with Outrider's hooks (vllm_hooks/) and its starter share."""

BACKEND = "safetensors"
"""Name of Outrider's weight transfer engine (vllm_hooks/weight_transfer.py)."""

HOOKS = "OUTRIDER_HOOKS"
"""Variable: 1 installs the hooks in vLLM (vllm_hooks/plugin.py)."""

HOOKED = {HOOKS: "1", "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY": "OUTRIDER_"}
"""Environment of vLLM processes with the hooks, also of those that Ray starts: servers and engines
that Outrider starts, and serve.sh."""
