"""Replication between nodes (not built yet): pure."""
