"""Housekeeping of a node: checkpoints, retention, flushes, compaction, a clean stop."""
