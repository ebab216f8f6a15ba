"""Swapping the speculator of a running server: candidates, addresses, messages."""
