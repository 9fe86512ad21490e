"""Spark sources and sinks (not built yet): speaks Kafka, never imports the broker."""
