"""Partitions on this node: their logs, their leadership, and those that could not be opened.

    replicas.py    which partitions of which topics have a log here
    partition.py   one partition: its log, its leadership, and the tickets that wait for its high watermark
    leadership.py  whether this node leads a partition, or which error applies
    commits.py     group commit: rounds of fsyncs
    own_logs.py    the state of this node's logs, for its row in the metadata
    unopened.py    logs that could not be opened at the start

`ottla.log` has the log of a partition, and `ottla.replica` decides what leaders and followers do.
"""
