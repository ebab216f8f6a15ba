"""Bundles: what `vllm serve` loads, its list of files, and where it is sent."""
