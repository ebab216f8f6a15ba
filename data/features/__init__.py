"""The target's hidden states: capture, self-check and the feature store."""
