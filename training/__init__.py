"""Training: batches, losses and the DeepSpeed trainer."""
