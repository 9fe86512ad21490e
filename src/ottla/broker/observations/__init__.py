"""Remembers what a node has seen, in rings of a fixed size, for the request `DescribeObservations`."""
