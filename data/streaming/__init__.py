"""Streamed training: hidden states go from capture to the trainer through memory, in plan order."""
