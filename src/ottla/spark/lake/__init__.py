"""Delta tables, written by `deltalake` alone."""
