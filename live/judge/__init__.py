"""Decisions from live requests: which of two speculators is better."""
