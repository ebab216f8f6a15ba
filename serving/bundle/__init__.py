"""Bundles: what `vllm serve` loads, its list of files, and its destinations."""
