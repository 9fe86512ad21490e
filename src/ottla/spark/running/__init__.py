"""Runs every pipeline: its queries, their progress display, and their checkpoints."""
