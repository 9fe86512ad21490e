"""Replication on this node: what it fetches of other leaders, and what its followers fetch of it."""
