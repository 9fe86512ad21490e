"""Bytes on disk: the log of one partition, in Kafka's file formats."""
