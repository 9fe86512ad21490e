"""Pipelines on Spark: topics to DataFrames and back. Speaks Kafka, never imports the broker."""
