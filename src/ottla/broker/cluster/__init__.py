"""Tracks the cluster as this node knows it, and changes it."""
