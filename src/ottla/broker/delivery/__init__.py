"""Delivery of share groups: share partitions, sessions, acknowledgements, dead letters."""
