"""Acceptance by exact replay of logged traffic, without the engine."""
