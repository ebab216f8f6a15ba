"""Serving: vLLM engines and servers, the capture extension, bundles."""
