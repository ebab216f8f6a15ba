"""Errors, files and fingerprints: used by every room, imports none of them."""
