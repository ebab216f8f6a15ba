"""DSpark heads: a DFlash block whose drafts also read the token before them."""
