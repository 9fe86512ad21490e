"""Harness for tests of schemas: a small registry, and what real serializers write."""
