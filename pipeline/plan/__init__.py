"""What a run would do and cost, for `train-speculator --dry-run`."""
