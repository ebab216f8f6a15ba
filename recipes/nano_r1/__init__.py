"""Nano R1, the embedded target: a small trained model with DeepSeek-R1's architecture."""
