"""From an exchange to the token ids that the engine saw and produced."""
