"""All hooks into vLLM's private interfaces, written for the release in version.py."""

BACKEND = "safetensors"
"""Name of Outrider's weight transfer engine (weight_transfer.py)."""

HOOKS = "OUTRIDER_HOOKS"
"""Variable: 1 installs the hooks in vLLM (plugin.py)."""

HOOKED = {HOOKS: "1", "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY": "OUTRIDER_"}
"""Environment of vLLM processes with the hooks, also of those that Ray starts: servers and engines
that Outrider starts, and serve.sh."""
