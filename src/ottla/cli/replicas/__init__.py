"""Replicas and leaders: where they are and should be, plans, the moves that carry them out, and throttles."""
