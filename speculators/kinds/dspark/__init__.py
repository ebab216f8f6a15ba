"""DSpark heads: a DFlash block whose drafts also read the preceding token."""
