"""Actions and cost of a run, for `train-speculator --dry-run`."""
