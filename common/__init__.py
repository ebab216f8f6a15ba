"""Errors, files and processes: used by every room, imports none of them."""
