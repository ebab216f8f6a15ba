"""Training, validation and held-out parts, by session and time."""
