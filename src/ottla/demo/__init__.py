"""Demonstrates Ottla: steps on a node of its own, and the proof at the end.

`run.py` runs the steps one after the other, `steps.py` holds them, `demonstration.py` is what they share: the node, the
stream of events, the members of the groups, and what went in and came out (`tally.py`). Everything here speaks Kafka
through confluent-kafka, so it would work on any broker.
"""
