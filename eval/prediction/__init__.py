"""Choosing K, and predicting throughput and cost."""
