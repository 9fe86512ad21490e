"""Wraps what `foreachBatch` calls, so that Spark can read its failures.

When a query is stopped, Spark searches the text of such a failure with a regular expression that recurses once a
character (StreamExecution.scala, PROXY_ERROR). A Java stack in that text overflows the stack of the query's thread,
which then prints a thousand lines. Such a text gets a last line for the expression instead, if an interrupt caused
the failure, so that Spark still knows what its own `stop` interrupted.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

SEARCHED_FROM = "py4j.protocol.Py4JJavaError"
"""Where Spark's expression begins to match."""
INTERRUPTS = (
    "java.lang.InterruptedException",
    "java.io.InterruptedIOException",
    "java.nio.channels.ClosedByInterruptException",
)
"""Where it may end (IO_EXCEPTION_NAMES)."""


class BatchFailedError(Exception):
    """A failure of Spark's in a micro-batch: the whole traceback, as text."""


def each_batch(function: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """The function, for `foreachBatch`. Raises BatchFailedError in place of what py4j raises."""

    def call(frame: DataFrame, number: int) -> None:
        try:
            function(frame, number)
        except Exception as error:
            text = "".join(traceback.format_exception(error))
            if SEARCHED_FROM not in text:
                raise
            raise BatchFailedError(readable(text)) from None

    return call


def readable(text: str) -> str:
    """Return the traceback so that Spark's expression does not match before its last line, and matches there if an
    interrupt is in it."""
    found = next((name for name in INTERRUPTS if name in text), None)
    plain = text.replace(SEARCHED_FROM, "Py4JJavaError")
    return plain if found is None else f"{plain}\n{SEARCHED_FROM}: An error occurred while calling Spark: {found}"
