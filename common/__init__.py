"""Errors, files, fingerprints and processes: used by all packages, independent of them."""
