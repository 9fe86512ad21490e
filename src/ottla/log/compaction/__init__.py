"""Compaction: a log keeps the last record of every key.

    cleanable.py   which part of a log is dirty, whether that is enough, where the last compaction ended
    compaction.py  the two passes over a log, and how new segments replace old ones
    filtering.py   which records of one batch are kept

Source: Kafka's LogCleaner.scala, LogCleanerManager.scala.
"""
