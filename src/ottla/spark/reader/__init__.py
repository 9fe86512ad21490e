"""The reader of `format("ottla")`, batch and stream: offsets asked for, ranges planned, records fetched."""
