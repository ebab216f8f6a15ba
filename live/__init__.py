"""Deployment to a live endpoint, and adaptation to its traffic."""
