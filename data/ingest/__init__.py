"""Converts logs to a table of token sequences and counts rejected rows."""
