"""Turns website activity (access logs, click events) from topics into events, windows, pages and sessions.

`run` is the pipeline, as `ottla pipeline activity` calls it; `batches` writes each micro-batch to the tables. `local`
computes windows and sessions of few rows in this process, `spark` those of many rows as Spark jobs. Both give the same.
The functions that map DataFrames to DataFrames are public: `parse`, `events`, `malformed`, `sessionise`, `conversions`,
`windowed` and `top_pages`.
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
