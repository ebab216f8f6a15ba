"""Launching ranks, preparing accelerate and DeepSpeed, failing fast."""
