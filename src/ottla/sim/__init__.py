"""The other shell."""
