"""Queues: share groups, their workers, records in flight, KMQ, and other queues beside them."""
