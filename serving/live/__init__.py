"""The live endpoint: its replicas, the router in front of them, and releases."""
