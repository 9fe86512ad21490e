"""Turns website activity (access logs, click events) from topics into events, windows, pages and sessions.

`parse`, `events`, `malformed`, `sessionise`, `conversions`, `windowed` and `top_pages` map DataFrames to DataFrames;
`run` is the pipeline over them, as `ottla pipeline activity` calls it.
"""

from ottla.spark.activity.parse import events, malformed, parse
from ottla.spark.activity.run import ActivityResult, run
from ottla.spark.activity.sessions import conversions, sessionise
from ottla.spark.activity.tables import Tables, WindowSettings
from ottla.spark.activity.windows import top_pages, windowed

__all__ = [
    "ActivityResult",
    "Tables",
    "WindowSettings",
    "conversions",
    "events",
    "malformed",
    "parse",
    "run",
    "sessionise",
    "top_pages",
    "windowed",
]
