"""Converts exchanges to the token ids that the engine read and generated."""
