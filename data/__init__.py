"""Data: from log formats to exchanges, token sequences and hidden states."""
