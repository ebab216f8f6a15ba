"""Compares a report with what vLLM's own `/metrics` counted in production."""
