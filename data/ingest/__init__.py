"""Logs to a table of token sequences, with every rejected row counted."""
