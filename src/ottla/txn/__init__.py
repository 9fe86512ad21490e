"""The transaction coordinator (not built yet): pure."""
