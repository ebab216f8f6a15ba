"""Errors, files, fingerprints and processes: used by all packages, imports none of them."""
