"""Swaps of weights take a bounded share of the time."""
