"""Clusters of three nodes from outside, and what the controller and the metadata of a larger one cost."""
