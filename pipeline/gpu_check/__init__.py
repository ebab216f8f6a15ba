"""Checks that only a GPU can make, in one command: `make gpu-check`."""
