"""Publishing to a live endpoint, and following its traffic."""
