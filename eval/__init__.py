"""Evaluation: exact replay, measurements in vLLM, statistics, the gate and the report."""
