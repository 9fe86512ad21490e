"""Replicas and leaders: where they are and should be, the moves that change it, and elections."""
