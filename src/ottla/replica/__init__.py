"""Replication between nodes, pure: what a leader knows of its followers, and how a follower fetches from its leader."""
