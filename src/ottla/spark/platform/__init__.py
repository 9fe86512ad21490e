"""What the other rooms stand on: Java, the session, workers, files that last, a client's properties, failures."""
