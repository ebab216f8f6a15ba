"""The stages of a run, one module each: inputs, outputs and work."""
