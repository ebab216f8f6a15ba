"""Deployment to a live endpoint: replicas, router, canary and controller."""
