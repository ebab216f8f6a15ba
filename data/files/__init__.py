"""Files of a log: where they are, how they are packed, and the rows in them."""
