"""Checks that logged text was produced by the target."""
