"""Controls access: the requests allowed before authentication, and each client's permissions."""
