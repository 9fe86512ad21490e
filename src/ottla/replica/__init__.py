"""Replication between nodes, pure: a leader's state of its followers, and how a follower fetches from its leader."""
