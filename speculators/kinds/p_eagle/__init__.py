"""P-EAGLE heads: EAGLE-3 heads that draft all tokens in one pass."""
