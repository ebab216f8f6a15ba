"""Ingest: logs to a table of token sequences, every rejected row counted."""
