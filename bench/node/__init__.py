"""A whole node from outside: throughput, raw frames, latency, and its life with stops and kills."""
