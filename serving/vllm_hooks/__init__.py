"""All hooks into vLLM's private interfaces, written for the release in version.py."""
