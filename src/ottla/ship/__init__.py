"""A shipper: lines of files that grow, rotate and shrink, to a topic. Speaks Kafka through confluent-kafka."""
