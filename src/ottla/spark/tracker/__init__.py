"""Runs KMQ's redelivery tracker on Spark: for markers that one process can't follow. The same machine as the standalone
one.

`redeliveries` is the dataflow, from a stream of markers to messages that have to be given again; `run` carries these
out too, until it is stopped. Does not know how a worker writes markers (`ottla.kmq.client`).
"""

from __future__ import annotations

from ottla.spark.tracker.processor import redeliveries, tracked
from ottla.spark.tracker.running import Tracked, run

__all__ = ["Tracked", "redeliveries", "run", "tracked"]
