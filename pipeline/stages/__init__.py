"""The stages of a run, one module each: what a stage reads, what it writes, and its work."""
