"""Launches ranks, prepares accelerate and DeepSpeed, and fails fast."""
