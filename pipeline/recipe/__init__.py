"""The schema of recipes; loading and checking them."""
