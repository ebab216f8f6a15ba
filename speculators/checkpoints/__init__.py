"""Drafter and target checkpoints: reading, writing, checking."""
