"""Names shared by hooked vLLM processes (vllm_hooks/) and the code that starts them."""

SWAP_EXTENSION = "outrider.serving.vllm_hooks.swap_extension.SwapExtension"
"""`--worker-extension-cls` of an engine whose speculator can be swapped."""

HOOKS = "OUTRIDER_HOOKS"
"""Environment variable; 1 installs the hooks in vLLM (vllm_hooks/plugin.py)."""

HOOKED = {HOOKS: "1", "VLLM_RAY_EXTRA_ENV_VAR_PREFIXES_TO_COPY": "OUTRIDER_"}
"""Environment of hooked vLLM processes, including those that Ray or serve.sh starts."""
