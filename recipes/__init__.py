"""Shipped recipes and endpoints, launch scripts, and nano R1."""
