"""Keeps a live endpoint's speculator fitted to its traffic: watch, train, gate, deploy."""
