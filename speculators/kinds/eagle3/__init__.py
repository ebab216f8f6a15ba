"""EAGLE-3 heads: one layer over auxiliary states of the target."""
