"""Notices a cluster that has given a session no executor, so that its jobs wait. A local master needs none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ottla.spark.platform.session import is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DRIVER = 1
"""Spark lists the driver among the executors."""


def waits_for_executors(session: SparkSession) -> bool:
    """Whether a job of this session is active while the session has no executor that could run its tasks."""
    context = session.sparkContext
    if is_local(str(context.master)):
        return False
    tracker = cast(Any, context)._jsc.sc().statusTracker()
    return len(tracker.getActiveJobIds()) > 0 and len(tracker.getExecutorInfos()) <= DRIVER
