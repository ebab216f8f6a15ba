"""Export bundles: files for `vllm serve`, their digests, and their destinations."""
