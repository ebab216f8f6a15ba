"""A Ray cluster: its recipe section, and a session on it."""
