"""Demonstrates Ottla: steps on a node of its own, and the proof at the end.

`run.py` runs the steps in order, `steps.py` holds them. `demonstration.py` holds what they share: the node, the stream
of events, the members of the groups, and the tally of input and output (`tally.py`). Everything here speaks Kafka
through confluent-kafka, so it would work on any broker.
"""
