"""The writer of `format("ottla")`, batch and stream: rows sent at least once, or exactly once."""
