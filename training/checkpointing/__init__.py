"""Checkpoints from which training resumes exactly."""
