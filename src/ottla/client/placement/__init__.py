"""Placement of replicas and leaders: plans, what a plan changes, the moves that carry it out, and their throttles."""
