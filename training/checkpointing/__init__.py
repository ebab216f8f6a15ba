"""Checkpoints for exact resume."""
