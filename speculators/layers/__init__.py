"""Layers of drafters in plain torch, as the serving engine computes them."""
