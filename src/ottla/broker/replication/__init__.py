"""Replicates partitions on this node: its fetches from other leaders, and the fetches of its followers."""
