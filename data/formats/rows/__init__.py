"""Rows of any format: what is wrapped around a call, and the fields beside it."""
