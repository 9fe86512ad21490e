"""Queues on any Kafka by start and end markers (not built yet); speaks Kafka through confluent-kafka."""
