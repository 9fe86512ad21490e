"""The demonstration: acts played on a node of its own, and the proof at the end.

`play.py` puts the acts one after the other, `acts.py` holds them, `stage.py` is what they share: the node, the stream
of events, the members of the groups, and what went in and came out (`tally.py`). Everything here speaks Kafka through
confluent-kafka, so it would work on any broker.
"""
