"""Checks that logged text is on-policy: sampled from the target."""
