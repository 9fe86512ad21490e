"""The reader of `format("ottla")`, batch and stream: finds offsets, plans ranges, fetches records."""
