"""Partitions on this node: their logs, their leadership, and those that could not be opened."""
