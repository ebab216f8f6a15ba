"""Speculator models: kinds, layers, unroll, acceptance and checkpoint formats."""
