"""Runs KMQ's redelivery tracker on Spark, for more markers than one process can handle, with the standalone tracker's
machine.

`redeliveries` is the dataflow, from a stream of markers to the messages to redeliver. `run` also redelivers these,
until it is stopped. `ottla.kmq.client` defines how a worker writes markers.
"""

from __future__ import annotations

from ottla.spark.tracker.processor import redeliveries, tracked
from ottla.spark.tracker.running import Tracked, run

__all__ = ["Tracked", "redeliveries", "run", "tracked"]
