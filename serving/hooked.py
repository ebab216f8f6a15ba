"""Names that a vLLM process with Outrider's hooks (vllm_hooks/) and its starter share."""

SWAP_EXTENSION = "outrider.serving.vllm_hooks.swap_extension.SwapExtension"
"""vLLM's `--worker-extension-cls` of an engine that swaps its speculator."""

HOOKS = "OUTRIDER_HOOKS"
"""Variable: 1 installs the hooks in vLLM (vllm_hooks/plugin.py)."""

HOOKED = {HOOKS: "1", "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY": "OUTRIDER_"}
"""Environment of vLLM processes with the hooks, also of those that Ray starts: servers and engines
that Outrider starts, and serve.sh."""
