"""The web console (not built yet): speaks only Kafka and the metrics port."""
