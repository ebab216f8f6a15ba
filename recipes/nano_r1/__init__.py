"""Nano R1, the embedded target: a small trained model of DeepSeek-R1's architecture."""
