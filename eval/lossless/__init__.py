"""Checks that speculation changes speed and nothing else."""
