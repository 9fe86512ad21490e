"""Pipelines: Spark reading topics, KMQ's tracker, activity and logs, each beside something simpler."""
