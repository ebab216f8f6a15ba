"""Confidence intervals for acceptance and speed."""
