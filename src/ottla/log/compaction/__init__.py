"""Compaction: a log keeps the last record of every key.

    cleanable.py   which part of a log is dirty, whether that is enough, where the last compaction ended
    compaction.py  the two passes over a log, and how new segments take the place of old ones
    filtering.py   what stays of one batch

Source: Kafka's LogCleaner.scala, LogCleanerManager.scala.
"""
