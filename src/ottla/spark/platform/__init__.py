"""Contains the basis of the other packages: Java, the session, workers, durable files, client properties, failures."""
