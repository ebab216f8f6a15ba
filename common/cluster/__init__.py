"""A Ray cluster: its recipe section, a session on it, tasks, actors and ranks. Only here is Ray."""
