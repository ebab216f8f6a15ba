"""Everything that reaches into vLLM's private interfaces."""
