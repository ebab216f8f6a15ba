"""Memory and FLOPs of training, computed without torch."""
