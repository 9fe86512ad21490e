"""Texts as Spark and Java read them: JSON and the names of time zones."""
