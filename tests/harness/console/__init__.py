"""Harness for tests of the console: an application over a broker, and a browser."""
