"""The stages of a run, their processes, and the run directory."""
