"""The demonstration: acts played on a node of its own, and the proof at the end. Speaks only Kafka."""
